"""A job is cancelled while one batch of it is half answered, and a process dies or is suspended just then: what is
committed is in the output, once, and what is not is in no output.
"""

import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from nightshift.common.failpoints import Moment
from nightshift.common.ledger.jobs import jobs
from nightshift.producer.verify.verify import verify
from tests.faults.test_control import SHOUT, change
from tests.faults.test_finish import let_others_finish
from tests.support.fleet import output_ids, tree, wait_until
from tests.support.remote import Call, Remote, Reply, answered
from tests.support.rig import Rig

pytestmark = pytest.mark.slow

ROWS, ANSWERED = 20, 5


@pytest.fixture
def half_answered(rig: Rig) -> Iterator[Callable[[], list[str]]]:
    """Submits the job `ended`, waits until its worker has the answers of some rows, and gives their ids."""
    released = threading.Event()

    def behave(call: Call) -> Reply:
        if remote.calls.index(call) >= ANSWERED:
            released.wait(300)
        return answered(call)

    with Remote().running() as remote:
        remote.behave = behave
        rig.environment |= {"NIGHTSHIFT_HEARTBEAT_SECONDS": "0.5"}

        def submit() -> list[str]:
            engine = {"backend": "openai", "model": "m", "base_url": remote.url, "concurrency": 8}
            rig.submit(
                "ended",
                ROWS,
                engine=engine,
                task={"kind": "generate", "prompt": "{{ id }}"},
                batch={"rows": ROWS},
                output={"uri": str(rig.folder / "ended")},
            )
            query = "SELECT rows_done_uncommitted FROM job_progress WHERE name = 'ended'"
            wait_until(lambda: rig.value(query) == ANSWERED, 120, "the answers in the progress")
            return sorted(call.text for call in remote.calls[:ANSWERED])

        yield submit
        released.set()


def ended_with(rig: Rig, ids: list[str]) -> None:
    """The job is over, with these rows in the ledger, the files and the manifest."""
    assert rig.wait_closed("ended") == "cancelled"
    assert rig.rows_done("ended") == len(ids)
    has_parts = any((rig.folder / "ended").glob("part-*"))
    assert (sorted(output_ids(rig.folder / "ended")) if has_parts else []) == ids
    assert rig.manifest("ended")["rows"] == len(ids)
    with rig.ledger.transaction() as connection:
        job = jobs.find(connection, "ended")
    assert verify(rig.ledger, job) == []
    spent = "SELECT rows_run FROM job_costs WHERE name = 'ended'"
    assert rig.value(spent) >= ANSWERED, "what was answered is paid, kept or not"


@pytest.mark.parametrize(
    ("moment", "action", "is_kept"),
    [
        (Moment.WRITTEN, "kill", False),
        (Moment.COMMITTING, "kill", False),
        (Moment.COMMITTED, "kill", True),
        (Moment.WRITTEN, "freeze", False),
        (Moment.COMMITTED, "freeze", True),
    ],
)
def test_a_child_that_dies_or_sleeps_while_it_keeps_the_answers_of_a_cancelled_job(
    rig: Rig, half_answered: Callable[[], list[str]], moment: Moment, action: str, is_kept: bool
) -> None:
    rig.reaper()
    rig.worker()
    ids = half_answered()
    rig.arm(moment, action)
    change(rig, jobs.cancel, "ended")
    child = rig.wait_fired(moment)
    ended_with(rig, ids if is_kept else [])
    if (
        action == "freeze"
    ):  # its lease has run out, and its job is closed: whatever it does now is too late
        rig.thaw([psutil.Process(child)])
    rig.finished("other", rig.submit("other", 10, engine=SHOUT))
    ended_with(rig, ids if is_kept else [])


@pytest.mark.parametrize("moment", [Moment.FINISHING, Moment.SWEEPING, Moment.CLOSING])
def test_a_reaper_that_sleeps_while_it_finishes_a_cancelled_job_changes_nothing_later(
    rig: Rig, half_answered: Callable[[], list[str]], moment: Moment
) -> None:
    first = rig.reaper()
    rig.worker()
    ids = half_answered()
    rig.arm(moment, "freeze")
    change(rig, jobs.cancel, "ended")
    rig.wait_fired(moment)
    rig.reaper()
    let_others_finish(rig)
    ended_with(rig, ids)
    rig.thaw(tree(first))
    first.terminate()
    assert first.wait(200) == 0
    ended_with(rig, ids)
