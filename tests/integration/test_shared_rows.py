"""Rows with equal requests in real batches: one runs, each has its own line, and the counts are true."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import EngineUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import job_pace
from nightshift.worker.engines.protocol import Answer, timed_out
from tests.integration.test_batch_runner import Scene, threads_end

__all__ = ["threads_end"]

TEXTS = ["red", "blue", "red", "red", "blue", "green"]

PURE = {"task": {"kind": "function", "dedupe": True}}


@pytest.fixture
def scene(ledger: Ledger, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(ledger, tmp_path, batch_rows=3, texts=TEXTS, **PURE)
    yield found
    found.patient.given_up.set()


def lines(scene: Scene) -> list[tuple[int, str, str | None, int | None]]:
    """(row, id, answer, row that answered) of every part, in dataset order."""
    tables = [pq.read_table(part) for part in sorted(scene.output.glob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted((row["row_index"], row["id"], row["loud"], row["answered_by"]) for row in rows)


def test_equal_rows_of_a_child_run_once_and_each_has_its_own_line(
    scene: Scene, ledger: Ledger
) -> None:
    thread = scene.run(scene.group[:1])
    scene.wait_taken(1)
    assert [each.row_index for each in scene.engine.taken[0][0].requests] == [0, 1]
    assert scene.window.room()[0] == scene.window.rows - 3 - 2, "the follower takes no room"
    scene.engine.answer(0)
    scene.wait_gone(0)
    thread.join()
    second = scene.run(scene.group[1:])
    scene.wait_taken(2)
    assert [each.row_index for each in scene.engine.taken[1][0].requests] == [5]
    scene.engine.answer(1)
    second.join()
    assert lines(scene) == [
        (0, "a-0", "RED", None),
        (1, "a-1", "BLUE", None),
        (2, "a-2", "RED", 0),
        (3, "a-3", "RED", 0),
        (4, "a-4", "BLUE", 1),
        (5, "a-5", "GREEN", None),
    ]
    assert scene.is_over()
    assert scene.states() == ["done", "done"]
    with ledger.transaction() as connection:
        row = job_pace.of(connection, scene.job_id)
    assert (row["rows_done"], row["rows_shared"], row["cached_tokens"]) == (6, 3, 0)


def test_a_batch_without_a_row_that_must_run_ends_at_once(ledger: Ledger, tmp_path: Path) -> None:
    scene = Scene(ledger, tmp_path, batch_rows=3, texts=["red"] * 6, **PURE)
    scene.run()
    scene.wait_taken(2)  # both were read before the first answer
    scene.engine.answer(0)
    scene.engine.answer(1)
    scene.wait_gone(0, 1)
    assert [line[2] for line in lines(scene)] == ["RED"] * 6
    third = scene.runner._inference._answers
    assert len(third._kept) == 1


def test_a_leader_without_an_answer_leaves_its_followers_to_run(scene: Scene) -> None:
    scene.run(scene.group[:1])
    scene.wait_taken(1)
    work, future = scene.engine.taken[0]
    work.emit(0, timed_out(work))
    work.emit(1, Answer({"loud": "BLUE"}))
    future.set_result(None)
    scene.wait_taken(2)
    assert [each.row_index for each in scene.engine.taken[1][0].requests] == [2]
    scene.engine.answer(1)
    scene.wait_gone(0)
    assert lines(scene) == [
        (0, "a-0", None, None),
        (1, "a-1", "BLUE", None),
        (2, "a-2", "RED", None),
    ]


def test_rows_that_wait_for_a_leader_are_released_with_it(scene: Scene) -> None:
    scene.run(scene.group[:1])
    scene.wait_taken(1)
    work, future = scene.engine.taken[0]
    work.emit(1, Answer({"loud": "BLUE"}))
    future.set_exception(EngineUnavailable("away"))
    scene.wait_gone(0)
    assert lines(scene) == [(1, "a-1", "BLUE", None)]
    assert scene.states().count("pending") == 1, "rows 0 and 2 are a batch again"


def test_rows_that_are_given_away_take_no_follower_with_them(scene: Scene) -> None:
    scene.run(scene.group[:1])
    scene.wait_taken(1)
    work, future = scene.engine.taken[0]
    work.wait(lambda rows: None, [0, 1])
    assert work.take_back(1) == [1]
    work.emit(0, Answer({"loud": "RED"}))
    future.set_result(None)
    scene.wait_gone(0)
    assert [line[0] for line in lines(scene)] == [0, 2]


def test_a_task_that_shares_nothing_has_no_such_column(ledger: Ledger, tmp_path: Path) -> None:
    scene = Scene(ledger, tmp_path, batch_rows=6, texts=TEXTS)
    scene.engine.at_once = True
    scene.run()
    scene.wait_gone(0)
    assert len(scene.engine.taken[0][0].requests) == 6
    (part,) = scene.output.glob("*.parquet")
    assert "answered_by" not in pq.read_schema(part).names
