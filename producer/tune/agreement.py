"""How far the answers of two trials with the same rows agree."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nightshift.common.errors import Permanent
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.results import part_files

SAME_SCORE = 0.01
"""Scores that differ by more are not equal."""

COLUMNS: Mapping[str, Sequence[str]] = {
    "generate": ("output", "outputs"),
    "requests": ("response",),
    "classify": ("label",),
    "score": ("score",),
    "embed": ("embedding",),
}
"""The columns, by kind of task, of which the first that is there is compared."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of `rows` rows which share has equal answers; of vectors `equal` is the mean cosine, and `least` the
    smallest. `by` says what was compared: answers, greedy answers, scores or vectors.
    """

    rows: int
    equal: float
    by: str = "answers"
    least: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that are known."""
        return {name: each for name, each in asdict(self).items() if each is not None}

    def __str__(self) -> str:
        if self.least is not None:
            return f"mean cosine {self.equal:.4f}, least {self.least:.4f}"
        what = "" if self.by == "answers" else f" {self.by}"
        return f"{100 * self.equal:.1f} % of {self.rows:,}{what} equal"


def compared(ledger: Ledger, own: Job, other: Job, by: str = "answers") -> Agreement:
    """The agreement of two jobs over the same rows. Raises Permanent where they have other rows, and
    where parts are gone.
    """
    kind = own.spec.task.kind
    ours, theirs = (answers(ledger, job) for job in (own, other))
    if not ours.num_rows or ours.column("row_index") != theirs.column("row_index"):
        raise Permanent(f"jobs {own.id} and {other.id} have answers for different rows")
    return agreement(kind, ours.column(1), theirs.column(1), by)


def answers(ledger: Ledger, job: Job) -> pa.Table:
    """`row_index` and the column that is compared, in dataset order."""
    schema = part_files.schema_of(job)
    name = next(each for each in COLUMNS[job.spec.task.kind] if each in schema.names)
    kept = [
        batch.select(["row_index", name])
        for page in part_files.pages(ledger, job)
        for part in page
        for batch in part_files.kept_rows(job, part)
    ]
    columns = pa.schema([schema.field("row_index"), schema.field(name)])
    return pa.Table.from_batches(kept, columns).sort_by("row_index")


def agreement(
    kind: str, ours: pa.ChunkedArray, theirs: pa.ChunkedArray, by: str = "answers"
) -> Agreement:
    """The agreement of two columns of answers to tasks of this kind, row by row."""
    rows = len(ours)
    if kind == "embed":
        cosines = _cosines(_vectors(ours), _vectors(theirs))
        return Agreement(rows, float(cosines.mean()), "vectors", float(cosines.min()))
    if kind == "score":
        apart = np.abs(ours.to_numpy() - theirs.to_numpy())
        return Agreement(rows, float((apart <= SAME_SCORE).mean()), "scores")
    plain: Callable[[Any], Any] = _said if kind == "requests" else _texts
    equal = sum(
        plain(one) == plain(other)
        for one, other in zip(to_list(ours), to_list(theirs), strict=True)
    )
    return Agreement(rows, equal / rows, by)


Vectors = npt.NDArray[np.float64]


def _vectors(column: pa.ChunkedArray) -> Vectors:
    """Vectors as (rows, dimensions)."""
    found = column.combine_chunks()
    numbers: Vectors = found.flatten().to_numpy().astype(np.float64)
    return numbers.reshape(len(found), -1)


def _cosines(one: Vectors, other: Vectors) -> Vectors:
    """Of each row; 0 where a vector is zero."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines = np.zeros(len(one))
    np.divide((one * other).sum(axis=1), lengths, cosines, where=lengths > 0)
    return cosines


def _texts(answer: Any) -> Any:
    """The text of an answer, or those of all its samples."""
    return [each["output"] for each in answer] if isinstance(answer, list) else answer


def _said(response: str) -> Any:
    """What the body of a response says, without its ids, times and counts."""
    return _without(json.loads(response), {"id", "created", "usage", "logprobs", "model"})


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, names) for name, each in value.items() if name not in names}
    if isinstance(value, list):
        return [_without(each, names) for each in value]
    return value
