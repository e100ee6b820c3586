"""Why a job moves or stands: one sentence for each case, and the command that helps."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nightshift.common.ledger.fleet.outages import Kind, Outage
from nightshift.common.states import JobState
from nightshift.producer.advice.here import NOBODY, Here, Works
from nightshift.producer.explain.reasons import explain
from nightshift.producer.explain.snapshot import Facts, SetAside, SlotFact
from nightshift.producer.serve.console.remedies import Shown, remedies

OWN, OTHER = "own", "other"

RUN = Here(Works.RUN, 7, "gpus", OWN)

FACTS = Facts(
    job_id=7,
    state=JobState.RUNNING,
    pool="gpus",
    engine_key=OWN,
    rows_total=100,
    pending=10,
    reaper_seconds=1.0,
)

FREE = SlotFact("a", "free")
READY = SlotFact("a", "ready", OWN)
LOADING = SlotFact("a", "loading", OWN, child_seconds=80)
TAKEN = SlotFact("a", "ready", OTHER, job="urgent", job_id=3, priority=5)
SERVES = SlotFact("a", "ready", OTHER, serves=OTHER)
FAILED = SetAside("a", "no GPU memory", "no GPU memory", 20)
AWAY = Outage(
    7, "disk", Kind.STORAGE, 1, ("gpu-1",), datetime(2026, 1, 1, tzinfo=UTC), 9.0, "No space left"
)

CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "completed",
        {"state": JobState.COMPLETED, "closed": True, "pending": 0},
        "completed",
        "it is completed, and every row has an answer",
        "",
    ),
    (
        "completed with errors",
        {"state": JobState.COMPLETED, "closed": True, "pending": 0, "rows_failed": 3},
        "completed",
        "it is completed, and 3 of 100 rows failed",
        "nightshift errors 7",
    ),
    (
        "failed",
        {"state": JobState.FAILED, "closed": True, "reason": "the model does not exist"},
        "failed",
        "it failed: the model does not exist",
        "nightshift retry 7 --failed",
    ),
    (
        "cancelled",
        {"state": JobState.CANCELLED, "closed": True},
        "cancelled",
        "it is cancelled, which is final; its parts stay",
        "",
    ),
    (
        "paused by somebody, with batches under way",
        {"state": JobState.PAUSED, "leased": 1},
        "paused",
        "it is paused; 1 batch ends as usual",
        "nightshift resume 7",
    ),
    (
        "paused by its budget",
        {"state": JobState.PAUSED, "reason": "limits.budget 5 is spent"},
        "paused",
        "it is paused: limits.budget 5 is spent",
        "nightshift resume 7 --budget MORE",
    ),
    (
        "no run",
        {"here": NOBODY},
        "no_run",
        "no `nightshift run` is running in this folder, so no worker runs the job",
        "nightshift run SPEC",
    ),
    (
        "no reaper ever",
        {"reaper_seconds": None, "slots": [READY]},
        "no_reaper",
        "no reaper is known, so nothing is handed out",
        "nightshift reaper",
    ),
    (
        "no reaper any more",
        {"reaper_seconds": 90.0, "slots": [READY]},
        "no_reaper",
        "no reaper was seen for 1 min 30 s, so nothing is handed out",
        "nightshift reaper",
    ),
    (
        "no reaper to close",
        {"reaper_seconds": None, "pending": 0},
        "no_reaper",
        "no reaper is known, so its files are not put in place",
        "nightshift reaper",
    ),
    (
        "closing",
        {"pending": 0},
        "closing",
        "every row is over, and its files are being put in place",
        "",
    ),
    (
        "a watched job without work",
        {"pending": 0, "watch_seconds": 30},
        "waits_for_files",
        "all rows so far are finished, and a reaper checks for new files every 30 s",
        "nightshift submit --append 7 --last",
    ),
    (
        "a watched job with files that do not fit",
        {"pending": 0, "watch_seconds": 30, "files_left": 2, "file_left_why": "in/b.csv: no room"},
        "waits_for_files",
        "all rows so far are finished, and a reaper checks for new files every 30 s; 2 files could not be added: in/b.csv: no room",
        "nightshift status 7",
    ),
    (
        "a watched job whose looks fail",
        {"pending": 0, "watch_seconds": 30, "watch_error": "in/: there is no such directory"},
        "look_failed",
        "all rows so far are finished, and the last check for new files failed: in/: there is no "
        "such directory",
        "nightshift status 7",
    ),
    (
        "paused in a folder without a run, with leases that the run left",
        {"state": JobState.PAUSED, "leased": 1, "here": NOBODY},
        "paused",
        "it is paused",
        "nightshift run SPEC",
    ),
    (
        "no reaper in the ledger of a folder",
        {"here": RUN, "reaper_seconds": None},
        "no_reaper",
        "no reaper is known, so nothing is handed out",
        "nightshift logs",
    ),
    (
        "a watched job after a cancel",
        {"state": JobState.CANCELLED, "pending": 0, "watch_seconds": 30},
        "closing",
        "it is cancelled, and its files are being put in place",
        "",
    ),
    (
        "closing after a cancel",
        {"state": JobState.CANCELLED},
        "closing",
        "it is cancelled, and its files are being put in place",
        "",
    ),
    (
        "at work",
        {"leased": 4, "children_at_work": 2, "rows_per_second": 1234.56},
        "working",
        "4 batches are at work on 2 workers, at 1,235 rows/s",
        "",
    ),
    (
        "every worker waits",
        {"leased": 4, "children_at_work": 1, "stalled": True, "outages": [AWAY]},
        "storage_away",
        "1 worker has waited 9 s for the storage of its files, on gpu-1: No space left",
        "",
    ),
    (
        "at work without a part so far",
        {"leased": 1, "children_at_work": 1, "lease_seconds": 250.0},
        "working",
        "1 batch is at work on 1 worker; the oldest for 4 min 10 s, and none has ended since",
        "",
    ),
    (
        "no worker",
        {},
        "no_worker",
        "no worker of the pool gpus is alive",
        "nightshift-worker --pool gpus",
    ),
    (
        "workers of another engine only",
        {"slots": [SERVES, replace(SERVES, host="b")]},
        "other_engine_only",
        "the workers of the pool gpus on a, b were started for another engine only",
        "nightshift-worker --pool gpus",
    ),
    (
        "all cordoned",
        {"slots": [replace(READY, cordon="a")]},
        "cordoned",
        "every slot of the pool gpus is cordoned, on a",
        "nightshift uncordon a",
    ),
    (
        "a cordoned worker beside a lost slot",
        {"slots": [replace(READY, cordon="s-1"), replace(READY, host="b", state="lost")]},
        "cordoned",
        "every slot of the pool gpus is cordoned or lost, on a, b",
        "nightshift uncordon s-1",
    ),
    (
        "all lost",
        {"slots": [replace(READY, state="lost")]},
        "lost",
        "every slot of the pool gpus is lost, on a: the kernel does not end the process that has its "
        "GPUs; restart the machine",
        "nightshift workers",
    ),
    (
        "no worker in the ledger of a folder",
        {"here": RUN},
        "no_worker",
        "no worker of the pool gpus is alive",
        "nightshift logs",
    ),
    (
        "watched, all done, and no reaper",
        {"pending": 0, "watch_seconds": 30, "reaper_seconds": 90},
        "no_reaper",
        "no reaper was seen for 1 min 30 s, so no reaper looks for new files",
        "nightshift reaper",
    ),
    (
        "failed loads everywhere",
        {
            "slots": [FREE, replace(FREE, host="b")],
            "set_aside": [FAILED, replace(FAILED, host="b", seconds_left=9)],
        },
        "load_failed",
        "its engine could not be loaded on a, b; the next try comes in 9 s; last error, on a: no GPU "
        "memory",
        "nightshift status 7",
    ),
    (
        "loading",
        {"slots": [LOADING], "load_seconds": 125.0},
        "loading",
        "its engine is being loaded on a, for 1 min 20 s; the last load took 2 min 05 s; the standard error of "
        "nightshift-worker on a shows its steps",
        "",
    ),
    (
        "failed here, loading there",
        {
            "slots": [replace(LOADING, host="b"), FREE],
            "set_aside": [FAILED],
            "here": Here(Works.RUN, 7),
        },
        "loading",
        "its engine is being loaded on b, for 1 min 20 s; `nightshift logs` shows its steps",
        "",
    ),
    (
        "makes room",
        {"slots": [replace(TAKEN, planned_key=OWN)]},
        "making_room",
        "a slot on a makes room for its engine",
        "",
    ),
    (
        "slots taken",
        {"slots": [TAKEN, TAKEN, replace(TAKEN, job_id=4)]},
        "slots_taken",
        "the pool gpus has 3 slots, and 2 of them work for job 3 (urgent, priority 5) and 1 more job",
        "nightshift set 7 --priority 6",
    ),
    (
        "slots taken by a job with a deadline",
        {"slots": [replace(TAKEN, due_seconds=7_200.0)]},
        "slots_taken",
        "the pool gpus has 1 slot, and 1 of them works for job 3 "
        "(urgent, priority 5, with a deadline in 2 h 00 min)",
        "nightshift set 7 --priority 6",
    ),
    (
        "slots taken by a job whose deadline has passed",
        {"slots": [replace(TAKEN, due_seconds=-60.0)]},
        "slots_taken",
        "the pool gpus has 1 slot, and 1 of them works for job 3 (urgent, priority 5)",
        "nightshift set 7 --priority 6",
    ),
    (
        "free slot",
        {"slots": [FREE]},
        "soon",
        "a slot of the pool gpus is given to its engine within seconds",
        "",
    ),
    (
        "all batches wait after an error",
        {"resting": 10, "rest_seconds": 4.6, "rest_error": "disk full", "slots": [READY]},
        "backing_off",
        "10 batches wait after an error, for 5 s at most: disk full",
        "nightshift history 7",
    ),
    (
        "others first",
        {"slots": [READY], "ahead": "job 3 (urgent)", "ahead_id": 3, "ahead_priority": 5},
        "others_first",
        "job 3 (urgent) goes first on the same workers, with priority 5",
        "nightshift set 7 --priority 5",
    ),
    (
        "about to begin",
        {"slots": [READY], "queued": 2},
        "soon",
        "its next batches are handed out within seconds",
        "",
    ),
]


@pytest.mark.parametrize(
    ("facts", "kind", "sentence", "command"),
    [case[1:] for case in CASES],
    ids=[c[0] for c in CASES],
)
def test_the_first_reason(facts: dict[str, Any], kind: str, sentence: str, command: str) -> None:
    first = explain(replace(FACTS, **facts))[0]
    assert (first.kind, first.sentence, next(iter(first.commands), "")) == (kind, sentence, command)


def test_an_archived_job_that_failed_is_not_advised_to_run_again() -> None:
    facts = replace(FACTS, state=JobState.FAILED, closed=True, is_archived=True)
    (found,) = explain(facts)
    assert found.commands[0] == "nightshift submit SPEC --out ANOTHER"
    assert remedies(found, facts, Shown({})) == []


def test_no_command_is_advised_twice_or_with_a_priority_that_no_job_may_have() -> None:
    served = replace(FACTS, pools=("a", "gpus"), here=Here(Works.SERVE))
    assert explain(served)[0].commands == ["nightshift set 7 --pool a"]
    for priority, commands in ((999, ["nightshift set 7 --priority 1000"]), (1000, [])):
        taken = replace(FACTS, slots=[replace(TAKEN, priority=priority)])
        assert explain(taken)[0].commands == commands


def test_what_bounds_a_job_that_is_at_work_is_said_too() -> None:
    facts = replace(FACTS, leased=4, children_at_work=1, rows_per_second=2.0, max_parallel=4)
    assert [each.kind for each in explain(facts)] == ["working", "max_parallel"]
    assert explain(facts)[1].sentence == (
        "limits.max_parallel is reached: 4 batches of at most 4 are queued or leased"
    )


KINDS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "every worker waits",
        {"leased": 4, "children_at_work": 1, "stalled": True, "outages": [AWAY]},
        ["storage_away", "standing"],
    ),
    (
        "one worker of two waits",
        {"leased": 4, "children_at_work": 2, "rows_per_second": 2.0, "outages": [AWAY]},
        ["storage_away", "working"],
    ),
    (
        "leases that a killed run left in its folder",
        {"here": NOBODY, "leased": 1, "children_at_work": 1, "lease_seconds": 180.0},
        ["no_run"],
    ),
    (
        "leases of dead workers, no reaper any more",
        {"reaper_seconds": 90.0, "leased": 4, "slots": []},
        ["no_reaper", "leases_left", "no_worker"],
    ),
    (
        "leases of dead workers are all that is left",
        {"pending": 0, "leased": 4},
        ["leases_left", "no_worker"],
    ),
    (
        "at work, and a reaper that died",
        {"reaper_seconds": 90.0, "leased": 4, "children_at_work": 2},
        ["no_reaper", "working"],
    ),
    (
        "at work, and no reaper was ever seen",
        {"reaper_seconds": None, "leased": 4, "children_at_work": 2},
        ["no_reaper", "working"],
    ),
    (
        "a queue that is full and nothing claimed",
        {"queued": 1, "max_parallel": 1, "slots": [READY]},
        ["soon"],
    ),
    ("a free slot beside a taken one", {"slots": [FREE, TAKEN]}, ["soon"]),
    (
        "a free slot that cannot load the engine beside a taken one",
        {"slots": [FREE, replace(TAKEN, host="b")], "set_aside": [FAILED]},
        ["slots_taken"],
    ),
]


@pytest.mark.parametrize(
    ("facts", "kinds"), [case[1:] for case in KINDS], ids=[case[0] for case in KINDS]
)
def test_all_reasons(facts: dict[str, Any], kinds: list[str]) -> None:
    assert [each.kind for each in explain(replace(FACTS, **facts))] == kinds
