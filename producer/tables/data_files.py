"""Parts on their way into a table: each is looked at, since no library checks that a file is there, has the columns
of the table and holds what is said of it.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_names, part_rows
from nightshift.common.formats.parquet.column_types import written_schema
from nightshift.common.formats.parquet.footer import read_footer
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.jobs.table_commits import TableFile
from nightshift.common.public_text import private
from nightshift.common.text import counted
from nightshift.producer.results import part_files
from nightshift.producer.tables.table import CommitRefused, DataFile

THREADS = 16
"""Files whose footers are read at once: on object stores the waiting costs most."""

TEXT_LENGTH = 32
"""Characters of a text that stand in the statistics of a table, as many as Spark writes."""

LAST_CHARACTER = "\U0010ffff"
"""Stands behind what is left of an upper bound, as Spark writes it: no text has this character."""


@dataclass(frozen=True, slots=True)
class PartsOfTable:
    """The parts of a job as files of its table."""

    job: Job
    schema: pa.Schema

    @classmethod
    def of(cls, job: Job) -> "PartsOfTable":
        """The parts of a job."""
        return cls(job, written_schema(part_files.schema_of(job)))

    def checked(self, parts: Sequence[TableFile]) -> list[DataFile]:
        """Return parts as data files, after comparing the footer of each with the ledger. Raises CommitRefused if a part
        is missing or differs, StorageUnavailable.
        """
        with ThreadPoolExecutor(min(THREADS, max(1, len(parts)))) as threads:
            return list(threads.map(storage.carried(self._checked), parts))

    def places(self, parts: Sequence[TableFile]) -> list[str]:
        """Return the URIs of parts."""
        return [part_names.final(self.job.output_uri, part.name) for part in parts]

    def batches(
        self, parts: Sequence[TableFile], instead_of: Sequence[TableFile] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows of parts for the table, in order, without those that stand the same in the parts before them: a
        merge would put them over what others have merged since.
        """
        before = self._digests(instead_of)
        for part in parts:
            for batch in self._rows_of(part):
                yield batch if not before else batch.filter(_changed(batch, before))

    def _digests(self, parts: Sequence[TableFile]) -> dict[int, int]:
        found: dict[int, int] = {}
        for part in parts:
            try:
                for batch in self._rows_of(part):
                    found |= {row["row_index"]: _digest(row) for row in batch.to_pylist()}
            except FileNotFoundError:  # somebody has removed what was replaced
                continue
        return found

    def _checked(self, part: TableFile) -> DataFile:
        uri = part_names.final(self.job.output_uri, part.name)
        found = self._looked_at(part, uri)
        if found.bytes != part.bytes:
            raise CommitRefused(
                f"{private(uri)} has {counted(found.bytes, 'byte')}, and the ledger says {part.bytes:,}: {self._way_back}"
            )
        return found

    @property
    def _way_back(self) -> str:
        job_id = self.job.id
        return (
            f"put the part back and run `nightshift retry {job_id} --dead`, or remove the part and run `nightshift "
            f"retry {job_id} --lost`"
        )

    def _rows_of(self, part: TableFile) -> Iterator[pa.RecordBatch]:
        uri = part_names.final(self.job.output_uri, part.name)
        yield from part_rows.iter_part_batches(uri, "parquet", self.schema)

    def _looked_at(self, part: TableFile, uri: str) -> DataFile:
        try:
            size = storage.stat(uri, links=False).size
            footer = read_footer(uri)
        except (FileNotFoundError, BadInput) as error:
            why = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
            raise CommitRefused(f"{private(uri)} {why}: {self._way_back}") from error
        columns = footer.schema.remove_metadata()
        if not _bare(columns).equals(_bare(self.schema)):
            raise CommitRefused(
                f"{private(uri)} has other columns than the job: {columns.to_string()}"
            )
        if footer.starts[-1] != part.rows:
            raise CommitRefused(
                f"{private(uri)} holds {counted(footer.starts[-1], 'row')}, and the ledger says {part.rows:,}: {self._way_back}"
            )
        return DataFile(uri, size, part.rows, *statistics(footer.metadata))


def _digest(row: dict[str, Any]) -> int:
    return hash(repr(row))


def _changed(batch: pa.RecordBatch, before: dict[int, int]) -> pa.Array:
    return pa.array([before.get(row["row_index"]) != _digest(row) for row in batch.to_pylist()])


def _bare(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, field.type) for field in schema])


def statistics(
    metadata: pq.FileMetaData,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """A lower and an upper bound of the values, and the number of nulls, of flat columns by their names, over all row
    groups.

    Bounds of texts are cut, and those of moments are rounded to milliseconds. Numbers with a fraction have none, since
    a reader may take NaN for the greatest of them; so have columns of which any row group says nothing.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for at in range(metadata.num_columns):
        column = metadata.schema.column(at)
        if "." in column.path:
            continue
        found = [group.column(at).statistics for group in groups]
        if any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[column.path] = sum(each.null_count for each in found)
        bounds = [
            _bounds(each, column.logical_type.type)
            for each, group in zip(found, groups, strict=True)
            if not (each.has_null_count and each.null_count == group.num_rows)
        ]
        known = [pair for pair in bounds if pair is not None]
        if known and len(known) == len(bounds):
            least[column.path] = min(low for low, _ in known)
            greatest[column.path] = max(high for _, high in known)
    return least, greatest, nulls


def _bounds(found: pq.Statistics, logical: str) -> tuple[Any, Any] | None:
    """Bounds of the values of a column in one row group."""
    if not found.has_min_max:
        # Texts of some thousand bytes have no bounds in the footer.
        return ("", LAST_CHARACTER) if logical == "STRING" else None
    try:
        low, high = found.min, found.max
        if isinstance(low, str):
            return low[:TEXT_LENGTH], high if len(high) <= TEXT_LENGTH else _cut(high)
        if isinstance(low, datetime):
            rest = timedelta(microseconds=-high.microsecond % 1000)
            return low.replace(microsecond=low.microsecond // 1000 * 1000), high + rest
    except (ValueError, OverflowError):  # a moment that Python's dates do not have
        return None
    return (low, high) if type(low) in (bool, int, date) else None


def _cut(text: str) -> str:
    return text[:TEXT_LENGTH] + LAST_CHARACTER
