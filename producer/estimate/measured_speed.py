"""The speed of engines like those of a job, from what they did in earlier jobs or in a pilot."""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.common.ledger import Ledger, spending
from nightshift.common.ledger.spending import SimilarJob
from nightshift.common.spec import STORED, JobSpec
from nightshift.producer.estimate import forecast
from nightshift.producer.estimate.forecast import Range


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """What engines with the same key did: `pace` is the rows a second of one engine.

    `output_tokens` is the mean of a row, known where the task was the same. `window_rows` is the
    number of rows that one engine holds in flight; 0 where no worker lives.
    """

    source: str
    rows: int
    pace: Range | None
    output_tokens: Range | None
    window_rows: int


def measure_speed(
    ledger: Ledger, spec: JobSpec, pilot: int | None
) -> tuple[MeasuredSpeed | None, int]:
    """The speed, None where no such engine ran, and how many workers of the pool live.

    `pilot` is a job of the ledger: then only that one counts.
    """
    task = spec.task.model_dump_json(by_alias=True, context=STORED)
    with ledger.transaction() as connection:
        living, window_rows = spending.slots(connection, spec.pool)
        found = spending.similar_jobs(connection, spec.pool, spec.engine_key, task, only=pilot)
        similar = [each for each in found if each.same_task] or found
        commits = spending.commits_of(connection, [each.job for each in similar])
    if not commits:
        return None, living
    same = all(each.same_task for each in similar)
    measured = MeasuredSpeed(
        source=_source(similar, pilot is not None, same=same),
        rows=sum(rows for rows, _, _ in commits),
        pace=forecast.ratio_range([(rows, seconds) for rows, seconds, _ in commits]),
        output_tokens=forecast.ratio_range([(tokens, rows) for rows, _, tokens in commits])
        if same
        else None,
        window_rows=window_rows,
    )
    return measured, living


def _source(similar: Sequence[SimilarJob], is_pilot: bool, *, same: bool) -> str:
    if is_pilot:
        return f"the pilot (job {similar[0].job})"
    jobs = f"job {similar[0].job}" if len(similar) == 1 else f"{len(similar)} jobs"
    return f"{jobs} with this engine" + ("" if same else ", of another task")
