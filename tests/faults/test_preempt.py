"""A machine that is drained, cordoned or taken away: finished rows stay, nothing is charged."""

import signal

import pytest

from tests.faults.test_drain import (
    ANSWERS_FIRST,
    RULES,
    computed,
    do_the_rest,
    draining,
    engine_key,
    leased,
    outcomes,
)
from tests.support.fleet import wait_until
from tests.support.rig import Rig


@pytest.mark.slow
def test_a_notice_drains_in_less_time_and_keeps_every_finished_row(rig: Rig) -> None:
    """Three workers with a drain of ten minutes: one finds a file, one gets a signal, and one gets
    the signal in the middle of its drain.
    """
    (rig.folder / "rules.py").write_text(RULES)
    rig.environment["NIGHTSHIFT_DRAIN_SECONDS"] = "600"
    rig.environment["NIGHTSHIFT_PREEMPT_SECONDS"] = "0.5"
    notice = rig.folder / "taken-away"
    ids, workers = {}, {}
    for name, callable, rows, size in (
        ("file", "rules:some", 600, 200),
        ("signal", "rules:few", 600, 200),
        ("late", "rules:stuck", 10, 10),
    ):
        engine = {"backend": "function", "callable": callable}
        ids[name] = rig.submit(
            name, [(f"{name}.parquet", rows)], engine=engine, batch={"rows": size}
        )
        workers[name] = rig.worker(
            "--engine-key", engine_key(rig, name), "--preempt-file", f"{notice}-{name}"
        )
    rig.reaper()

    wait_until(lambda: leased(rig, "late"), what="the call that never returns")
    workers["late"].terminate()
    wait_until(lambda: len(computed(rig, "file")) >= ANSWERS_FIRST, what="half a batch")
    (rig.folder / "taken-away-file").touch()
    wait_until(lambda: len(computed(rig, "signal")) >= ANSWERS_FIRST, what="half a batch")
    workers["signal"].send_signal(signal.SIGUSR1)
    wait_until(lambda: draining(rig, "late"), what="the long drain")
    workers["late"].send_signal(signal.SIGUSR1)

    for name, worker in workers.items():
        assert worker.wait(200) == 0, name
        assert not leased(rig, name)
        assert rig.rows_done(name) == len(computed(rig, name))
    for name in ("file", "signal"):
        assert rig.rows_done(name) >= ANSWERS_FIRST
        assert outcomes(rig, name) - {"released"} == {"split"}
    assert outcomes(rig, "late") == {"released"}
    assert rig.value("SELECT count(*) FROM slots") == 0, "no plan counts on these machines"
    for name in workers:
        do_the_rest(rig, name)
        rig.finished(name, ids[name])
    assert rig.charges() == (0, 0)


@pytest.mark.slow
def test_a_drained_worker_gives_its_work_to_others_and_serves_again_when_it_may(rig: Rig) -> None:
    (rig.folder / "rules.py").write_text(RULES)
    engine = {"backend": "function", "callable": "rules:some"}
    ids = rig.submit("work", [("work.parquet", 500)], engine=engine, batch={"rows": 50})
    rig.reaper()
    worker = rig.worker()
    wait_until(lambda: len(computed(rig, "work")) >= ANSWERS_FIRST, what="half a batch")
    supervisor = rig.value("SELECT supervisor FROM slots")
    host = rig.value("SELECT host FROM slots")
    said = rig.command("drain", host)
    assert said.stdout == (
        f"host {host}: state in service -> drained; 1 slot of 1 worker; "
        "`nightshift workers` shows when they are free; "
        f"`nightshift uncordon {host}` takes it back into service\n"
    )
    wait_until(
        lambda: rig.value("SELECT state FROM slots") == "free" and not rig.children(worker),
        what="the end of its child",
    )
    assert not leased(rig, "work")
    assert rig.rows_done("work") == len(computed(rig, "work"))

    # A worker that starts on a drained host, as after a reboot, gets nothing either.
    worker.terminate()
    assert worker.wait(100) == 0
    again = rig.worker()
    wait_until(lambda: rig.value("SELECT count(*) FROM slots"), what="its report")
    assert supervisor != rig.value("SELECT supervisor FROM slots")
    since = rig.value("SELECT clock_timestamp()")
    planned = "SELECT count(*) FROM pool_plans WHERE computed_at > %s + interval '2 seconds'"
    wait_until(lambda: rig.value(planned, since), what="plans that could have started a child")
    assert rig.value("SELECT count(*) FROM cordoned_slots WHERE drains") == 1
    assert not rig.children(again)
    assert rig.rows_done("work") == len(computed(rig, "work"))
    assert outcomes(rig, "work") - {"released"} == {"split"}

    (rig.folder / "told").touch()
    assert rig.command("uncordon", host).returncode == 0
    rig.finished("work", ids)
    assert rig.charges() == (0, 0)
