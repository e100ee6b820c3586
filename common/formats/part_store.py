"""The parts of one job: read under the job's schema, and merged with rows that ran again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import provenance
from nightshift.common.descriptor import RowRanges
from nightshift.common.formats import output_schema, part_io, part_tables
from nightshift.common.spec import JobSpec


@dataclass(frozen=True, slots=True)
class PartStore:
    """Reads parts of a job with these input columns and this output schema."""

    spec: JobSpec
    inputs: pa.Schema
    schema: pa.Schema

    def read(self, name: str, uri: str) -> pa.Table:
        """A whole part, which lies at `uri`, under the job's schema."""
        table = part_io.read_part(uri, self.spec.output.format, self._stored_schema(name))
        return part_tables.under_schema(table, self.schema)

    def provenance(self, uri: str) -> dict[str, str]:
        """The metadata of a part; empty where the format has no place for metadata."""
        return part_io.part_metadata(uri) if self.spec.output.format == "parquet" else {}

    def kept_rows(self, name: str, uri: str, redone: RowRanges | None) -> Iterator[pa.RecordBatch]:
        """The rows of a part without those of `redone`, a few thousand at a time."""
        redo = None if redone is None else pa.array(list(redone), pa.int64())
        stored = self._stored_schema(name)
        for batch in part_io.iter_part_batches(uri, self.spec.output.format, stored):
            table = part_tables.under_schema(pa.Table.from_batches([batch]), self.schema)
            if redo is not None:
                table = table.filter(pc.invert(pc.is_in(table.column("row_index"), redo)))
            yield from table.to_batches()

    def merge(
        self, new: pa.Table, made_by: Mapping[str, str], redone: RowRanges, name: str, uri: str
    ) -> tuple[pa.Table, dict[str, str]]:
        """The new rows with the kept rows of a part, in row order, and the provenance of both.

        `redone` are the rows that `new` has.
        """
        kept = pa.Table.from_batches(self.kept_rows(name, uri, redone), self.schema)
        merged = pa.concat_tables([new, kept]).sort_by("row_index")
        return merged, provenance.with_kept(made_by, redone, self.provenance(uri))

    def _stored_schema(self, name: str) -> pa.Schema:
        return output_schema.stored_schema(name, self.spec, self.inputs, self.schema)
