"""A reaper dies or freezes while it finishes a job: no part too much, none too few."""

from common.faultpoints import Moment
from common.ledger import jobs, retries
from tests.faults.rig import Rig
from tests.integration.fleet import tree

UNTIL_MENDED = """
import os

def shout(rows):
    if not os.path.exists("mended") and any(row["id"].endswith("3") for row in rows):
        raise ValueError("not yet")
    return [{"loud": row["text"].upper()} for row in rows]
"""

SHOUT = {"backend": "function", "callable": "rules:shout"}


def let_others_finish(rig: Rig) -> None:
    """The courtesy that one reaper has a job's files to itself is over after a minute."""
    rig.ask("UPDATE jobs SET finisher_until = now() RETURNING id")


def test_another_reaper_finishes_what_one_left_half_done(rig: Rig) -> None:
    rig.worker()
    rig.reaper()
    for moment in (Moment.FINISHING, Moment.SWEEPING, Moment.CLOSING):
        rig.arm(moment, "kill")
        ids = rig.submit(moment, 40, engine=SHOUT)
        rig.wait_fired(moment)
        rig.reaper()
        let_others_finish(rig)
        rig.finished(moment, ids)


def test_a_late_sweep_deletes_no_part_of_a_retry(rig: Rig) -> None:
    """It lists the files, freezes, and a retry replaces the part before it goes on."""
    (rig.folder / "rules.py").write_text(UNTIL_MENDED)
    rig.arm(Moment.SWEEPING, "freeze")
    ids = rig.submit("late", 30, engine=SHOUT, batch={"rows": 30})
    late = rig.reaper()
    rig.worker()
    rig.wait_fired(Moment.SWEEPING)
    (rig.folder / "mended").touch()
    # The new part lies beside the old one, which nobody deletes.
    rig.arm(Moment.MOVED, "kill")
    with rig.ledger.transaction() as connection:
        retries.retry(connection, jobs.find(connection, "late").id, failed=True, dead=False)
    rig.reaper()
    rig.wait_fired(Moment.MOVED)
    assert rig.rows_done("late") == 30
    rig.thaw(tree(late))
    rig.finished("late", ids)
