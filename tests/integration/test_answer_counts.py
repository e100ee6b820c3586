"""Real batches count their answers with their commit: by length and by label, as the output has them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import answer_counts, spending
from nightshift.common.ledger.jobs.answer_counts import AnswerCounts
from nightshift.common.ledger.jobs.spending import Spent
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Refusal
from tests.integration.test_batch_runner import Scene, threads_end
from tests.support.world import World

__all__ = ["threads_end"]

LABELS = ["good", "bad", "so so"]

SECTIONS: dict[str, Any] = {
    "task": {"kind": "generate", "prompt": "{{ text }}", "output": {"choice": LABELS}},
    "engine": {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"},
}

OUTCOMES = [
    Answer({"output": "bad"}, "stop", 5, 1),
    Answer({"output": "good"}, "stop", 5, 3),
    Refusal(RowErrorKind.INVALID_OUTPUT, "no label", 5, 9),
    Answer({"output": "bad"}, "stop", 5, 2),
    Answer({"output": "bad"}, "stop", 5, 17),
    Answer({"output": "good"}, "stop", 5, 2),
]


@pytest.fixture
def scene(ledger: Ledger, tmp_path: Path) -> Iterator[Scene]:
    texts = [f"row {row}" for row in range(len(OUTCOMES))]
    found = Scene(ledger, tmp_path, batch_rows=3, texts=texts, **SECTIONS)
    yield found
    found.patient.given_up.set()


def answer(scene: Scene, at: int) -> None:
    """Gives the rows of a batch that the engine has their outcomes."""
    work, future = scene.engine.taken[at]
    for position, request in enumerate(work.requests):
        work.emit(position, OUTCOMES[request.row_index])
    future.set_result(None)


def run(scene: Scene) -> None:
    thread = scene.run()
    scene.wait_taken(2)
    answer(scene, 0)
    answer(scene, 1)
    thread.join()
    assert scene.is_over()


def found(scene: Scene) -> answer_counts.JobAnswers:
    with scene.ledger.transaction() as connection:
        return answer_counts.of_job(connection, scene.job_id)


def output(scene: Scene) -> list[dict[str, Any]]:
    parts = [pq.read_table(part) for part in scene.output.glob("*.parquet")]
    return [row for part in parts for row in part.to_pylist() if row["error"] is None]


def test_the_counts_of_a_job_are_those_of_its_output_as_soon_as_that_is_committed(
    scene: Scene,
) -> None:
    assert found(scene).as_json() == {"answer_lengths": [], "answer_labels": None}
    run(scene)
    rows, counts = output(scene), found(scene)
    assert counts.labels == {**dict.fromkeys(LABELS, 0), **Counter(row["output"] for row in rows)}
    assert counts.lengths == [0, 1, 3, 0, 0, 1]
    assert sum(counts.lengths) == len(rows) == 5


def test_a_commit_whose_answer_was_lost_counts_once(scene: Scene) -> None:
    commits = scene.runner.publisher.commits
    original, lost = commits._commit_group, []

    def interrupted(group: Sequence[Any]) -> Sequence[bool | Exception]:
        done = original(group)
        if not lost:
            lost.append(len(group))
            raise LedgerUnavailable("the answer to COMMIT was lost")
        return done

    commits._commit_group = interrupted  # type: ignore[method-assign]
    run(scene)
    assert lost
    assert sum(found(scene).lengths) == 5
    [spent] = scene.window.spent(scene.job_id)
    assert spent.answered == AnswerCounts((0, 1, 3, 0, 0, 1), (2, 3, 0))


def test_an_answer_that_is_not_committed_does_not_count(scene: Scene, ledger: Ledger) -> None:
    thread = scene.run()
    scene.wait_taken(2)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE batches SET attempt = attempt + 1 WHERE seq = 0"))
    answer(scene, 0)
    answer(scene, 1)
    thread.join()
    assert found(scene).labels == {"good": 1, "bad": 2, "so so": 0}


def test_children_add_up_and_a_report_that_comes_late_takes_nothing_back(world: World) -> None:
    job_id = world.job(4)
    early = Spent(job_id, 10, 1, 7, 5, answered=AnswerCounts((0, 2)))
    late = Spent(job_id, 20, 2, 14, 10, answered=AnswerCounts((0, 2, 0, 1)))
    for each in (late, early, late):
        world.run(spending.report, "one", [each])
    world.run(spending.report, "two", [early])
    world.run(spending.report, "old", [Spent(job_id, 1, 1, 1, 1)])
    assert world.run(answer_counts.of_job, job_id) == answer_counts.JobAnswers([0, 4, 0, 1], None)


FORMS: list[dict[str, Any]] = [
    {"json_schema": {"type": "object"}},
    {"regex": "[a-z]+"},
    {"grammar": 'root ::= "a"'},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_a_job_whose_answers_have_a_form_without_labels_has_no_labels(
    world: World, form: dict[str, Any]
) -> None:
    task = {**SECTIONS["task"], "output": form}
    job_id = world.job(4, **{**SECTIONS, "task": task})
    world.run(spending.report, "one", [Spent(job_id, 10, 1, 7, 5, answered=AnswerCounts((0, 2)))])
    assert world.run(answer_counts.of_job, job_id) == answer_counts.JobAnswers([0, 2], None)
