"""Failed loads in the ledger: who is set aside, which jobs fail, which wait, and who says so."""

from typing import Any

import pytest

from nightshift.common.allocation.load_errors import UNEXPLAINED, case_of
from nightshift.common.errors import (
    BadInput,
    EngineLoadFailed,
    EngineNotHere,
    MachineCannotLoad,
    RevisionChanged,
)
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.engines.loads import LoadPolicy
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.fleet.slots import Machine, SlotReport
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.public_text import private
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET
from nightshift.producer.views import tables
from nightshift.producer.views.standings import with_standings
from tests.integration.test_plan import empty, ordered, other, plan, report
from tests.support.world import World, become_ready, child_of, make_ready

POLICY = LoadPolicy(backoff_seconds=2, alive_seconds=30)
ONE_MACHINE = LoadPolicy(backoff_seconds=2, alive_seconds=30, one_machine=True)


def machine(host: str, serves: str | None = None) -> Machine:
    return Machine(f"super-{host}", "default", host, serves)


def lives(world: World, *hosts: str) -> None:
    for host in hosts:
        report(world, empty(1), machine(host))


def fail(
    world: World,
    job_id: int,
    host: str,
    error: Exception | None = None,
    policy: LoadPolicy = POLICY,
) -> None:
    """A load of the job's engine fails on a living machine, some time after its last failed load."""
    lives(world, host)
    world.ask("UPDATE refusals SET retry_at = now() WHERE host = %s RETURNING 1", host)
    error = error or RuntimeError("no such thing")
    key = world.specs[job_id].engine_key
    world.run(loads.failed, machine(host), key, case_of(error), str(error), policy)


def state(world: World, job_id: int) -> JobState:
    job = world.run(jobs.get, job_id)
    assert job is not None
    return job.state


def looked(world: World, job_id: int) -> Any:
    with world.ledger.transaction() as connection:
        return with_standings(connection, [job_pace.of(connection, job_id)], FLEET)[0]


def waiting(world: World, job_id: int) -> Any:
    return looked(world, job_id)["waiting"]


def reaper(world: World) -> None:
    world.do("INSERT INTO reapers (name, host, code_version) VALUES ('r', 'h', 'x')")


def loading(world: World, job_id: int, host: str, number: int = 1) -> workers.Child:
    key = world.specs[job_id].engine_key
    child = workers.Child(f"{host}-{number}", f"super-{host}", "default", number, host, 1, key)
    world.run(workers.register, child)
    return child


def test_one_machine_that_fails_fails_no_job_that_other_machines_still_load(world: World) -> None:
    job_id = world.job(1)
    lives(world, "bad", "good")
    child = loading(world, job_id, "good")
    for _ in range(5):
        fail(world, job_id, "bad")
    assert state(world, job_id) is JobState.RUNNING
    world.run(lambda c: workers.end(c, child.id, died="the engine could not be loaded"))
    fail(world, job_id, "good")
    assert state(world, job_id) is JobState.FAILED


def test_two_machines_that_fail_for_the_jobs_own_reason_fail_its_job_and_no_other(
    world: World,
) -> None:
    job_id = world.job(1)
    other = world.job(1, name="other", callable="rules:other")
    lives(world, "a", "b", "c")
    fail(world, job_id, "a")
    assert state(world, job_id) is JobState.RUNNING
    fail(world, job_id, "b")
    job = world.run(jobs.get, job_id)
    assert job.state is JobState.FAILED
    assert job.reason == "the engine could not be loaded: no such thing"
    assert state(world, other) is JobState.RUNNING


def test_a_tenant_reads_of_a_failed_load_no_folder_of_the_worker(world: World) -> None:
    """While machines try again and once the job has failed; an operator reads the whole error."""
    job_id = world.job(1, tenant="acme")
    reaper(world)
    key = world.specs[job_id].engine_key
    error = EngineLoadFailed(f"the model folder {private('/srv/models/small')} has no weights")

    def read(tenant: str | None) -> str:
        with world.ledger.transaction() as connection:
            row = job_pace.of(connection, job_id)
            (seen,) = with_standings(connection, [row], FLEET, tenant)
        return f"{seen['reason']} {seen['standing'].sentence}"

    def reads_as_it_may() -> None:
        assert "the model folder small has no weights" in read("acme")
        assert "/srv/models" not in read("acme")
        assert "the model folder /srv/models/small has no weights" in read(None)

    lives(world, "a", "b")
    world.run(loads.failed, machine("a"), key, case_of(error), error, POLICY)
    world.do("UPDATE slots SET state = 'lost' WHERE host = 'b'")
    assert state(world, job_id) is JobState.RUNNING
    reads_as_it_may()
    world.run(loads.failed, machine("b"), key, case_of(error), error, POLICY)
    assert state(world, job_id) is JobState.FAILED
    reads_as_it_may()


def test_failed_loads_fail_no_job_while_a_living_child_has_the_engine(world: World) -> None:
    job_id = world.job(1)
    make_ready(world, child_of(world.specs[job_id]))
    for host in "abcd":
        fail(world, job_id, host)
    assert state(world, job_id) is JobState.RUNNING
    world.run(lambda c: workers.end(c, "child-1", died="gone"))
    fail(world, job_id, "a")
    assert state(world, job_id) is JobState.FAILED


def test_machines_that_load_again_what_they_failed_to_load_hold_up_no_end(world: World) -> None:
    job_id = world.job(1)
    lives(world, "a", "b")
    fail(world, job_id, "a")
    loading(world, job_id, "a", 2)
    fail(world, job_id, "b")
    assert state(world, job_id) is JobState.FAILED


@pytest.mark.parametrize("before", ["the hub was away", "before a load that worked"])
def test_a_load_after_a_failure_that_is_no_evidence_holds_up_the_end(
    world: World, before: str
) -> None:
    """Once a machine whose hub had been away for a moment loaded for nobody: others failed its job."""
    job_id = world.job(1)
    lives(world, "a", "b", "c")
    if before == "the hub was away":
        fail(world, job_id, "c", MachineCannotLoad("503 of the hub"))
    else:
        fail(world, job_id, "c")
        make_ready(world, child_of(world.specs[job_id], 9))
        world.run(lambda c: workers.end(c, "child-9", died=None))
    child = loading(world, job_id, "c", 2)
    fail(world, job_id, "a")
    fail(world, job_id, "b")
    assert state(world, job_id) is JobState.RUNNING
    world.run(lambda c: workers.end(c, child.id, died="no such thing"))
    fail(world, job_id, "b")
    assert state(world, job_id) is JobState.FAILED


def test_the_failures_of_machines_that_are_gone_are_no_evidence(world: World) -> None:
    """Once a node whose pod was replaced counted as two machines."""
    job_id = world.job(1)
    lives(world, "good")
    fail(world, job_id, "pod-1")
    world.run(lambda c: fleet.leave(c, "super-pod-1"))
    fail(world, job_id, "pod-2")
    assert state(world, job_id) is JobState.RUNNING
    world.ask(
        "UPDATE slots SET seen_at = now() - interval '1 minute' WHERE host = 'pod-2' RETURNING 1"
    )
    fail(world, job_id, "pod-3")
    assert state(world, job_id) is JobState.RUNNING
    fail(world, job_id, "good")
    assert state(world, job_id) is JobState.FAILED


def test_one_failure_on_a_machine_that_is_gone_fails_no_job_where_others_may_not_load(
    world: World,
) -> None:
    job_id = world.job(1)
    fail(world, job_id, "gone")
    world.ask("UPDATE refusals SET failed_since = now() - interval '31 s' RETURNING 1")
    world.run(lambda c: fleet.leave(c, "super-gone"))
    fail(world, job_id, "a", EngineNotHere("not allowed on this worker"))
    assert state(world, job_id) is JobState.RUNNING


def test_the_time_of_failures_for_another_reason_is_none_of_the_jobs_own(world: World) -> None:
    job_id = world.job(1)
    fail(world, job_id, "a", MachineCannotLoad("503 of the hub"))
    world.ask("UPDATE refusals SET failed_since = now() - interval '1 hour' RETURNING 1")
    fail(world, job_id, "a")
    assert state(world, job_id) is JobState.RUNNING
    world.ask("UPDATE refusals SET failed_since = now() - interval '31 s' RETURNING 1")
    fail(world, job_id, "a")
    assert state(world, job_id) is JobState.FAILED


def test_failures_before_a_load_that_worked_count_no_more(world: World) -> None:
    job_id = world.job(1)
    fail(world, job_id, "a")
    make_ready(world, child_of(world.specs[job_id]))
    world.run(lambda c: workers.end(c, "child-1", died=None))
    fail(world, job_id, "b")
    assert state(world, job_id) is JobState.RUNNING
    assert world.ask("SELECT load_failures FROM engines")[0].load_failures == 1


def test_the_only_machine_fails_a_job_when_it_has_tried_for_longer_than_a_load(
    world: World,
) -> None:
    job_id = world.job(1)
    lives(world, "a")
    for _ in range(4):
        fail(world, job_id, "a")
    assert state(world, job_id) is JobState.RUNNING
    world.ask("UPDATE refusals SET failed_since = now() - interval '31 s' RETURNING 1")
    fail(world, job_id, "a")
    assert state(world, job_id) is JobState.FAILED


def test_what_machines_may_not_or_cannot_load_waits_and_says_so(world: World) -> None:
    job_id = world.job(1)
    reaper(world)
    assert waiting(world, job_id) == "no worker of the pool default is alive"
    lives(world, "a", "b")
    assert waiting(world, job_id) is None
    for _ in range(4):
        fail(world, job_id, "a", EngineNotHere("the module is not allowed on this worker"))
    assert waiting(world, job_id) is None, "b may have it"
    for _ in range(4):
        fail(world, job_id, "b", MachineCannotLoad("no memory"))
    assert state(world, job_id) is JobState.RUNNING
    says = (
        "its engine could not be loaded on a, b; last error, on a: the module is not allowed on this "
        "worker"
    )
    assert waiting(world, job_id) == says
    line = tables.line(looked(world, job_id))
    assert line.endswith(f", waits: {says}")
    loading(world, job_id, "b")
    assert waiting(world, job_id) == says, "while it is tried again"
    lives(world, "c")
    assert waiting(world, job_id) is None
    world.run(jobs.pause, job_id)
    assert waiting(world, job_id) is None


def test_machines_for_other_engines_cannot_run_a_job(world: World) -> None:
    job_id = world.job(1)
    reaper(world)
    report(world, empty(1), machine("a", serves="another"))
    assert waiting(world, job_id) == (
        "the workers of the pool default on a were started for another engine only"
    )


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (EngineNotHere("not installed"), 1),
        (EngineLoadFailed("cannot be imported"), 1),
        (MachineCannotLoad("no memory"), 3),
        (RuntimeError("who knows"), 3),
    ],
)
def test_a_fleet_of_one_machine_fails_at_the_first_try_what_can_never_work(
    world: World, error: Exception, tries: int
) -> None:
    job_id = world.job(1)
    lives(world, "a")
    for _ in range(tries - 1):
        fail(world, job_id, "a", error, ONE_MACHINE)
    assert state(world, job_id) is JobState.RUNNING
    fail(world, job_id, "a", error, ONE_MACHINE)
    assert state(world, job_id) is JobState.FAILED


@pytest.mark.parametrize("serves", [None, "another"])
def test_a_run_beside_the_machines_of_a_fleet_fails_no_job_of_the_fleet(
    world: World, serves: str | None
) -> None:
    job_id = world.job(1)
    lives(world, "laptop")
    report(world, empty(1), machine("server", serves))
    for error in (EngineNotHere("not installed"), *[MachineCannotLoad("no memory")] * 3):
        fail(world, job_id, "laptop", error, ONE_MACHINE)
    assert state(world, job_id) is JobState.RUNNING
    world.run(lambda c: fleet.leave(c, "super-server"))
    fail(world, job_id, "laptop", EngineNotHere("not installed"), ONE_MACHINE)
    assert state(world, job_id) is JobState.FAILED


def test_a_run_judges_by_its_own_failed_loads_only(world: World) -> None:
    job_id = world.job(1)
    fail(world, job_id, "gone", EngineNotHere("not installed"))
    lives(world, "laptop")
    fail(world, job_id, "laptop", MachineCannotLoad("no memory"), ONE_MACHINE)
    assert state(world, job_id) is JobState.RUNNING


def test_a_machine_that_could_not_load_an_engine_is_set_aside_and_another_has_it(
    world: World,
) -> None:
    job_id = world.job(256)
    key = world.specs[job_id].engine_key
    lives(world, "bad")
    plan(world)
    assert ordered(world, empty(1), machine("bad")) == [key]
    fail(world, job_id, "bad", MachineCannotLoad("no memory"))
    assert ordered(world, empty(1), machine("bad")) == [None], "of the plan of before"
    lives(world, "good")
    plan(world)
    assert ordered(world, empty(1), machine("good")) == [key]
    assert world.ask("SELECT refused FROM slots WHERE host = 'bad'")[0].refused == [key]
    [row] = world.run(loads.set_aside)
    assert (row["host"], row["engine_key"], row["concern"], row["error"]) == (
        "bad",
        key,
        "machine",
        "no memory",
    )
    loading(world, job_id, "bad")
    [child] = world.run(workers.status)
    assert child["engines_set_aside"] == 1
    world.run(loads.forgive, "default", key)
    assert world.run(loads.set_aside) == []


def test_the_pause_of_a_machine_grows_and_ends_with_a_load(world: World) -> None:
    job_id = world.job(256)
    child = child_of(world.specs[job_id])
    who = Machine(child.supervisor, child.pool, child.host)
    facts = "SELECT failures, round(extract(epoch FROM retry_at - now())) AS pause FROM refusals"
    tell = (who, child.engine_key, UNEXPLAINED, "no memory", POLICY)
    for failures, pause in ((1, 2), (1, 2)):  # the second failed together with the first
        world.run(loads.failed, *tell)
        assert tuple(world.ask(facts)[0]) == (failures, pause)
    for failures, pause in ((2, 4), (3, 8)):
        world.ask("UPDATE refusals SET retry_at = now() RETURNING pool")
        world.run(loads.failed, *tell)
        assert tuple(world.ask(facts)[0]) == (failures, pause)
    world.ask("UPDATE refusals SET retry_at = now(), failures = 30 RETURNING pool")
    world.run(loads.failed, *tell)
    assert tuple(world.ask(facts)[0]) == (31, loads.LONGEST_PAUSE_SECONDS)
    make_ready(world, child)
    assert world.ask(facts) == []


def test_the_first_load_fixes_the_revision(world: World) -> None:
    spec = world.specs[world.job(1)]
    assert make_ready(world, child_of(spec, 1), "abc") == "abc"
    assert make_ready(world, child_of(spec, 2), "def") == "abc"
    states = world.ask("SELECT state FROM workers ORDER BY id")
    assert [row.state for row in states] == ["ready", "loading"], "the second serves nothing"


def test_loads_of_another_revision_count_as_failed_loads(world: World) -> None:
    """Once the count began anew with each of them, and the model was loaded for ever."""
    job_id = world.job(1)
    first = child_of(world.specs[job_id], 1)
    make_ready(world, first, "abc")
    world.run(lambda c: workers.end(c, first.id, died=None))
    changed = RevisionChanged("the model moved on")
    for number, host in enumerate("ab", 2):
        child = child_of(world.specs[job_id], number)
        assert make_ready(world, child, "def") == "abc"
        world.run(lambda c, each=child.id: workers.end(c, each, died="another revision"))
        fail(world, job_id, host, changed)
    assert world.ask("SELECT load_failures FROM engines")[0].load_failures == 2
    assert state(world, job_id) is JobState.FAILED


def test_a_pinned_revision_is_released_when_nobody_has_the_model(world: World) -> None:
    job_id = world.job(1)
    spec = world.specs[job_id]
    with pytest.raises(BadInput, match="there is nothing to release"):
        world.run(loads.release_revision, spec.pool, spec.engine_key)
    make_ready(world, child_of(spec, 1), "abc")
    with pytest.raises(BadInput, match="1 worker has or loads its model at revision abc"):
        world.run(loads.release_revision, spec.pool, spec.engine_key)
    world.run(lambda c: workers.end(c, "child-1", died=None))
    late = loading(world, job_id, "late")
    # That child has read the revision and would pin it anew once it is ready.
    with pytest.raises(BadInput, match="1 worker has or loads its model at revision abc"):
        world.run(loads.release_revision, spec.pool, spec.engine_key)
    world.run(lambda c: workers.end(c, late.id, died=None))
    assert world.run(loads.release_revision, spec.pool, spec.engine_key) == "abc"
    assert make_ready(world, child_of(spec, 2), "def") == "def"


def test_a_slot_that_fails_takes_no_engine_from_a_slot_of_its_machine_and_waits_ever_longer(
    world: World,
) -> None:
    """Once the healthy slot was drained for other work, and each new load of it forgave the failure."""
    job_id = world.job(*[256] * 9, priority=1)
    other(world, *[256] * 9)
    child = child_of(world.specs[job_id], 0)
    who = Machine(child.supervisor, child.pool, child.host)
    world.run(workers.register, child)
    tell = (who, child.engine_key, UNEXPLAINED, "a broken GPU", POLICY)
    world.run(loads.failed, *tell)
    become_ready(world, child)
    slots = [SlotReport(0, "", child.id, child.engine_key, leaves=False), empty(2)[1]]
    report(world, slots, who)
    plan(world)
    facts = "SELECT slot, engine_key FROM slot_plans ORDER BY slot"
    planned = {row.slot: row.engine_key for row in world.ask(facts)}
    assert planned[0] == child.engine_key
    assert planned[1] != child.engine_key
    world.ask("UPDATE refusals SET retry_at = now() RETURNING 1")
    world.run(loads.failed, *tell)
    assert world.ask("SELECT failures FROM refusals")[0].failures == 2


def test_a_silent_load_counts_as_loading_for_as_long_as_its_supervisor_lives(
    world: World,
) -> None:
    """Once it was ended after a lease: it was killed as hung, and other machines failed its job."""
    job_id = world.job(1)
    child = loading(world, job_id, "good", 0)
    report(world, [SlotReport(0, "", child.id, child.engine_key, leaves=False)], machine("good"))
    world.ask("UPDATE workers SET seen_at = now() - interval '1 hour' RETURNING 1")
    world.run(workers.end_silent, 60)
    assert world.run(workers.child_state, child.id) == "loading"
    for host in ("a", "b"):
        fail(world, job_id, host)
    assert state(world, job_id) is JobState.RUNNING
    world.ask(
        "UPDATE slots SET seen_at = now() - interval '1 hour' WHERE host = 'good' RETURNING 1"
    )
    world.run(workers.end_silent, 60)
    assert world.run(workers.child_state, child.id) == "ended"
    fail(world, job_id, "a")
    assert state(world, job_id) is JobState.FAILED
