"""The answers of which a model was least sure, input beside output."""

import heapq
from collections.abc import Iterator

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import VOTE_SHARE
from nightshift.producer.results import part_files
from nightshift.producer.results.sample import Sample, chosen

CONFIDENCE = "confidence"


def doubtful(ledger: Ledger, job: Job, count: int) -> Sample:
    """The `count` finished rows with the least confidence, or with the least share of a vote, the least
    first; rows of equal numbers in dataset order. Every part is read.

    BadInput for a job that has neither column, or no answer yet.
    """
    column = next(
        (name for name in (CONFIDENCE, VOTE_SHARE) if name in job.spec.task.answers), None
    )
    if column is None:
        raise BadInput(
            f"job {job.id} tells of no answer how sure the model was: a job with task.output.choice and "
            "task.output.confidence: true does, and one with task.vote"
        )
    told = 0
    least: list[tuple[float, int]] = []
    for number, index in _numbers(ledger, job, column):
        told += 1
        heapq.heappush(least, (-number, -index))
        if len(least) > count:
            heapq.heappop(least)
    if not told:
        raise BadInput(f"job {job.id} has no answer with a {column} yet")
    rows = [-index for _, index in sorted(least, reverse=True)]
    drawn = chosen(ledger, job, rows)
    drawn.total = told
    drawn.by = column
    return drawn


def _numbers(ledger: Ledger, job: Job, column: str) -> Iterator[tuple[float, int]]:
    for page in part_files.pages(ledger, job):
        for part in page:
            for batch in part_files.kept_rows(job, part):
                numbers = batch.column(column).to_pylist()
                indices = batch.column("row_index").to_pylist()
                yield from (
                    (number, index)
                    for number, index in zip(numbers, indices, strict=True)
                    if number is not None
                )
