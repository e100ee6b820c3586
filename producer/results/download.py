"""The results of a job as one file that goes to a reader while it is made.

The parts are fixed first, in one transaction. Then they are read one by one, each held to its checksum: a part
that is gone or another one by then is an error in the place of its rows, and the file has no end.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import BadInput, Permanent, SourceChanged
from nightshift.common.formats.known import FORMATS
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection, one_moment
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.common.public_text import private
from nightshift.common.text import counted
from nightshift.producer.closed_jobs import readable
from nightshift.producer.results import collect, part_files

Kind = Literal["jsonl", "csv", "parquet"]

PIECE_BYTES = 256 * 1024
"""Bytes that are sent together: each piece costs a change of threads."""

SLICE_BYTES = 2**20
"""Decoded bytes of the rows that become text at once: as objects of Python they take many times as much."""

PARTS_AT_ONCE = 10_000

PART = pa.schema(
    [
        ("seq", pa.int64()),
        ("part_name", pa.string()),
        ("row_count", pa.int64()),
        ("redo_count", pa.int64()),
        ("part_checksum", pa.string()),
    ]
)
"""What is remembered of a part: 120 bytes, where the objects of Python take ten times as much."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The live parts of a job at one moment, in the order of the dataset; `redone` has the rows that run again,
    by the place of their part.
    """

    table: pa.Table
    redone: Mapping[int, RowRanges]

    @classmethod
    def now(cls, connection: Connection, job_id: int, most: int | None = None) -> "Parts":
        """Those of a job, or the first `most`."""
        redone: dict[int, RowRanges] = {}
        pages, page, place = [], list[Mapping[str, Any]](), 0
        for place, part in enumerate(live_parts.kept_parts(connection, job_id, most)):
            if part["redo"] is not None:
                redone[place] = part["redo"]
            page.append({name: part[name] for name in PART.names})
            if len(page) == PARTS_AT_ONCE:
                pages.append(pa.RecordBatch.from_pylist(page, PART))
                page = []
        pages.append(pa.RecordBatch.from_pylist(page, PART))
        return cls(pa.Table.from_batches(pages, PART), redone)

    @property
    def rows(self) -> int:
        """The rows that count."""
        counts, redone = self.table.column("row_count"), self.table.column("redo_count")
        return int(pc.sum(pc.subtract(counts, redone)).as_py() or 0)

    def roots(self) -> Iterator[list[dict[str, Any]]]:
        """The parts of each root batch together, as `part_files.roots` gives them."""
        for _, parts in groupby(self._each(), key=lambda part: part["seq"]):
            yield list(parts)

    def _each(self) -> Iterator[dict[str, Any]]:
        place = 0
        for page in self.table.to_batches(PARTS_AT_ONCE):
            for part in page.to_pylist():
                yield {**part, "redo": self.redone.get(place)}
                place += 1


@dataclass(frozen=True, slots=True)
class Download:
    """A file with `rows` of the `rows_total` rows of a job; those of a `sample` are the first ones of its parts."""

    job: Job
    kind: Kind
    rows: int
    rows_total: int
    is_sample: bool
    parts: Parts

    @property
    def name(self) -> str:
        """The name of the file, which says what it lacks."""
        lacks = "-sample" if self.is_sample else "-partial" if self.rows < self.rows_total else ""
        return f"{self.job.spec.name}-{self.job.id}{lacks}.{self.kind}"

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file.

        Holds a root batch, a row group of Parquet and one piece. Raises SourceChanged for a part that is gone or
        another one, BadInput for one that cannot be read, Permanent where a part has other rows than the ledger
        says, StorageUnavailable.
        """
        rows = collect.as_they_lie(
            self.job, self.parts.roots(), self.parts.rows, partial(_checked_rows, self.job)
        )
        if self.is_sample:
            rows = _first(rows, self.rows)
        kind, sink = collect.kind_of(self.job, self.kind), Sink()
        schema = part_files.schema_of(self.job)
        if kind != "parquet":
            rows = _sliced(rows)
        for _ in FORMATS[kind].written(rows, schema, cast("Any", sink), {}):
            if sink.size >= PIECE_BYTES:
                yield from sink.taken()
        yield from sink.taken()


def prepare(
    ledger: Ledger, job: Job, kind: Kind, *, partial: bool = False, sample: int | None = None
) -> Download:
    """The file of a job as it is now; with `partial` of the rows that it has so far, with `sample` of the first so
    many of these.

    Raises BadInput where the job has no rows, or not all of them and that is not asked for, and where its
    output is outside of the roots that it is held to; Permanent where parts and ledger disagree.
    """
    if job.roots is not None:
        storage.check_held([job.output_uri], job.roots, storage.OF_JOB)
    with readable(ledger, job) as own, own.transaction() as connection:
        one_moment(connection)
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
        parts = Parts.now(connection, job.id, sample)
    rows, total, why = parts.rows, progress["rows_total"], collect.why_partial(job, progress)
    if not rows:
        raise BadInput(f"job {job.id} is {job.state} and no row of it has an outcome yet")
    if sample is not None:
        return Download(job, kind, min(rows, sample), total, True, parts)
    if why and not partial:
        raise BadInput(f"{why}: partial=true takes what is there")
    if not why and rows != total:
        raise Permanent(
            f"the parts of job {job.id} have {counted(rows, 'row')} and the ledger says {total:,}: see `nightshift "
            f"verify {job.id}`"
        )
    return Download(job, kind, rows, total, False, parts)


class Sink(io.RawIOBase):
    """A file that only grows, from whose beginning bytes are taken meanwhile."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:  # noqa: D102
        return True

    def write(self, data: Any) -> int:  # noqa: D102
        self._held += data
        return len(data)

    @property
    def size(self) -> int:
        """Bytes that nobody has taken."""
        return len(self._held)

    def taken(self) -> Iterator[bytes]:
        """What was written since the last time, in pieces."""
        held, self._held = self._held, bytearray()
        for start in range(0, len(held), PIECE_BYTES):
            yield bytes(held[start : start + PIECE_BYTES])


def _checked_rows(job: Job, parts: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows of a root batch, whose parts are those that the ledger has."""
    try:
        for part in parts:
            uri = part_files.place(job, part["part_name"])
            if storage.checksum(uri) != part["part_checksum"]:
                raise SourceChanged(
                    f"{private(uri)} is not what it was when its rows were done: see `nightshift verify {job.id}`"
                )
        yield from collect.own_rows(job, parts)
    except FileNotFoundError as error:
        names = ", ".join(part["part_name"] for part in parts)
        raise SourceChanged(f"{names} of job {job.id} went away while it was read") from error


def _first(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    left = most
    for batch in batches:
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, of about SLICE_BYTES at once."""
    for batch in batches:
        most = max(1, batch.num_rows * SLICE_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, most):
            yield batch.slice(start, most)
