"""The table of allowed moves, and its repetition in the database's CHECK constraints."""

import re
from enum import StrEnum
from pathlib import Path

import pytest

from nightshift import common
from nightshift.common.states import (
    ARCHIVE_MOVES,
    BATCH_MOVES,
    JOB_MOVES,
    ArchiveState,
    BatchState,
    JobState,
    Outcome,
)

TABLES = Path(common.__file__).parent / "migrations" / "first" / "core.sql"


@pytest.mark.parametrize(
    ("states", "moves"),
    [(JobState, JOB_MOVES), (BatchState, BATCH_MOVES), (ArchiveState, ARCHIVE_MOVES)],
)
def test_every_state_has_its_moves_and_none_leads_to_itself(
    states: type[StrEnum], moves: dict[StrEnum, frozenset[StrEnum]]
) -> None:
    assert set(moves) == set(states)
    for state, following in moves.items():
        assert state not in following


def test_a_job_that_is_over_runs_again_only_by_retry_and_never_when_cancelled() -> None:
    over = {state for state in JobState if state.over}
    assert over == {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    assert JOB_MOVES[JobState.CANCELLED] == frozenset()
    for state in over - {JobState.CANCELLED}:
        assert JOB_MOVES[state] == {JobState.RUNNING}


def test_a_split_batch_stays_split() -> None:
    assert BATCH_MOVES[BatchState.SPLIT] == frozenset()


def test_only_an_admitted_batch_is_leased_and_one_dies_leased_or_when_a_retry_is_undone() -> None:
    def before(state: BatchState) -> set[BatchState]:
        return {origin for origin, following in BATCH_MOVES.items() if state in following}

    assert before(BatchState.LEASED) == {BatchState.QUEUED}
    assert before(BatchState.DEAD) == {BatchState.LEASED, BatchState.PENDING}
    assert before(BatchState.SPLIT) == {BatchState.PENDING, BatchState.LEASED}


@pytest.mark.parametrize(
    ("table", "column", "states"),
    [
        ("jobs", "state", JobState),
        ("batches", "state", BatchState),
        ("attempts", "outcome", Outcome),
    ],
)
def test_the_database_allows_exactly_these_states(
    table: str, column: str, states: type[StrEnum]
) -> None:
    created = re.search(rf"CREATE TABLE {table} \((.*?)\n\);", TABLES.read_text(), re.DOTALL)
    assert created is not None
    check = re.search(rf"CHECK \({column} IN \(([^)]*)\)", created[1])
    assert check is not None
    assert re.findall(r"'(\w+)'", check[1]) == [str(state) for state in states]
