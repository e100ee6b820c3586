"""SIGTERM at any time: leases are free before the exit, nothing is charged, no answer is lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nightshift.common import failpoints
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches.records import Claimant
from nightshift.worker.engines.function.host import Rows
from nightshift.worker.runner import Runner
from tests.support.child import child_of
from tests.support.fleet import wait_until
from tests.support.functions import engine_of
from tests.support.rig import Rig

ANSWERS_FIRST = 20
"""Rows that `some` and `few` of the rules answer before they wait to be told."""

RULES = f"""
import os
import time
from pathlib import Path

answered = 0

def note(rows):
    line = "".join(row["id"] + chr(10) for row in rows)
    place = os.open("computed", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(place, line.encode())
    os.close(place)
    return [{{"loud": row["text"].upper()}} for row in rows]

def some(rows):
    global answered
    if len(rows) > 10:
        raise ValueError("too many at once")
    while answered >= {ANSWERS_FIRST} and not Path("told").exists():
        time.sleep(0.02)
    answered += len(rows)
    return note(rows)

def few(rows):
    return some(rows)

def stuck(rows):
    while True:
        time.sleep(1)
"""
"""Rows of a batch get their answers some at a time, by halving, so that the batch can be cut anywhere.
After ANSWERS_FIRST rows the function stands in the middle of a batch until the file `told` is there.
"""

ASLEEP = """
import time

open("asleep", "w").close()
while True:
    time.sleep(1)

from rules import note
"""


@pytest.mark.slow
def test_sigterm_gives_everything_back_whatever_the_worker_is_at(rig: Rig) -> None:
    """Four workers, each with an engine of its own; a fifth, in this process, does what is left."""
    (rig.folder / "rules.py").write_text(RULES)
    (rig.folder / "asleep_at_import.py").write_text(ASLEEP)
    rig.environment["NIGHTSHIFT_ALLOWED_MODULES"] = "rules,asleep_at_import"
    rig.reaper()
    ids, workers = {}, {}
    for name, callable, rows, size, grace in (
        ("stuck", "rules:stuck", 10, 10, 1),
        ("loading", "asleep_at_import:note", 10, 10, 30),
        ("shorter", "rules:some", 600, 200, 0.5),
        ("longer", "rules:few", 600, 40, 600),
    ):
        engine = {"backend": "function", "callable": callable}
        ids[name] = rig.submit(
            name, [(f"{name}.parquet", rows)], engine=engine, batch={"rows": size}
        )
        rig.environment["NIGHTSHIFT_DRAIN_SECONDS"] = str(grace)
        workers[name] = rig.worker("--engine-key", engine_key(rig, name))

    comes_to: dict[str, Callable[[], object]] = {
        "stuck": lambda: leased(rig, "stuck"),  # the call that never returns
        "loading": (rig.folder / "asleep").exists,  # the load of an engine
        # In the middle of a batch, until they are told.
        "shorter": lambda: len(computed(rig, "shorter")) >= ANSWERS_FIRST,
        "longer": lambda: len(computed(rig, "longer")) >= ANSWERS_FIRST,
    }

    def asked_to_leave() -> bool:
        """Each as soon as it is where it shall be met, whichever comes first."""
        for name in [name for name, there in comes_to.items() if there()]:
            workers[name].terminate()
            if name in ("shorter", "longer"):
                workers[name].terminate()
            del comes_to[name]
        return not comes_to

    wait_until(asked_to_leave, what="the work of every worker")
    wait_until(lambda: draining(rig, "longer"), what="the drain")
    workers["longer"].terminate()
    # Only now, so that `told` comes to none but the one with time.
    for name in ("shorter", "loading", "stuck", "longer"):
        if name == "longer":
            (rig.folder / "told").touch()
        assert workers[name].wait(200) == 0
        assert not leased(rig, name)
        assert rig.rows_done(name) == len(computed(rig, name))
    # What is cut off is split, what was not begun is given back.
    found = {name: outcomes(rig, name) - {"released"} for name in workers}
    assert found == {
        "longer": {"done"},
        "shorter": {"split"},
        "loading": set(),
        "stuck": set(),
    }
    assert "released" not in outcomes(rig, "longer")
    assert not computed(rig, "stuck")
    assert 0 < rig.rows_done("shorter") < len(ids["shorter"])
    assert rig.value("SELECT count(*) FROM workers WHERE state <> 'ended'") == 0
    assert rig.value("SELECT count(*) FROM workers WHERE error IS NOT NULL") == 0
    assert rig.value("SELECT coalesce(sum(load_failures), 0) FROM engines") == 0
    for name in workers:
        do_the_rest(rig, name)
        rig.finished(name, ids[name])
    assert rig.charges() == (0, 0)


def test_a_batch_that_is_still_being_read_when_the_time_is_over_does_not_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = rig.submit("reading", 10, batch={"rows": 10})
    rig.reaper()
    reading, read_on = threading.Event(), threading.Event()

    def slow_storage(moment: Moment) -> None:
        if moment is Moment.READING:
            reading.set()
            read_on.wait(60)

    monkeypatch.setattr(failpoints, "observer", slow_storage)
    with runner(rig, "reading", refuse) as first:
        wait_until(lambda: first.work("poll", wait=False), what="the claim")
        assert reading.wait(60)
        drain = threading.Thread(target=first.drain, args=(lambda: 0,))
        drain.start()
        wait_until(lambda: not any(batch.runs for batch in first.window.held()), what="the end")
        read_on.set()
        drain.join(60)
    assert outcomes(rig, "reading") == {"released"}
    do_the_rest(rig, "reading")
    rig.finished("reading", ids)
    assert rig.charges() == (0, 0)


def shout(rows: Rows) -> Rows:
    return [{"loud": row["text"].upper()} for row in rows]


def refuse(rows: Rows) -> Rows:
    raise AssertionError("nobody asked for these rows")


@contextmanager
def runner(rig: Rig, name: str, function: Callable[[Rows], Rows] = shout) -> Iterator[Runner]:
    """A worker in this process for the engine of a job."""
    who = Claimant("in-process", "default", engine_key(rig, name), "function", "1")
    ledger = Ledger(rig.url)
    engine = engine_of(function, "rules:shout")
    found = Runner(child_of(who, ledger, engine))
    found.draining.set()  # it does not wait for more than there is
    yield found
    found.drain(lambda: 30)
    ledger.close()


def do_the_rest(rig: Rig, name: str) -> None:
    """Claims and runs what is left of a job."""
    with runner(rig, name) as other:
        wait_until(
            lambda: other.work("poll", wait=False) == 0 and closed(rig, name), what="the rest"
        )


def engine_key(rig: Rig, name: str) -> str:
    return str(rig.value("SELECT engine_key FROM jobs WHERE name = %s", name))


def closed(rig: Rig, name: str) -> bool:
    return bool(rig.value("SELECT closed_at IS NOT NULL FROM jobs WHERE name = %s", name))


def leased(rig: Rig, name: str) -> int:
    query = "SELECT batches_leased FROM job_progress WHERE name = %s"
    return int(rig.value(query, name))


def draining(rig: Rig, name: str) -> bool:
    """Whether a child of this job's engine has said that it drains, or is through with it."""
    query = "SELECT count(*) FROM workers WHERE state IN ('draining', 'ended') AND engine_key = %s"
    return bool(rig.value(query, engine_key(rig, name)))


def outcomes(rig: Rig, name: str) -> set[str]:
    """How the leases of a job's batches ended so far."""
    query = "SELECT outcome FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.name = %s"
    return {outcome for (outcome,) in rig.ask(query, name)}


def computed(rig: Rig, name: str) -> list[str]:
    """The rows of a job that its callable gave an answer for, as often as it did."""
    place = rig.folder / "computed"
    lines = place.read_text().split() if place.exists() else []
    return [line for line in lines if line.startswith(f"{name}-")]
