"""The rows of a job under the types that its files have: as record batches, and as one
`pyarrow.dataset` over the live parts.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats.parquet import column_types
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.results import part_files


def schema(job: Job) -> pa.Schema:
    """The columns of the job as its files have them, without metadata of ours."""
    return column_types.written_schema(part_files.schema_of(job))


def as_in_files(job: Job, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows under that schema."""
    target = schema(job)
    for batch in rows:
        yield from column_types.as_written(pa.Table.from_batches([batch]), target).to_batches()


def dataset(ledger: Ledger, job: Job) -> Any:
    """A dataset over the parts that the ledger names now, without the rows that run again.

    Raises BadInput for parts of JSON lines, which do not say their types, SourceChanged when a part is
    gone.
    """
    if job.spec.output.format != "parquet":
        raise BadInput(
            f"job {job.id} wrote JSON lines, which do not say their types: read its batches"
        )
    parts = [part for page in part_files.pages(ledger, job) for part in page]
    places = [part_files.place(job, part["part_name"]) for part in parts]
    filesystem = None
    if places and not storage.is_local(places[0]):
        filesystem = storage.driver_of(places[0])[0]
        places = [storage.driver_of(place)[1] for place in places]
    found = ds.dataset(places, schema=schema(job), format="parquet", filesystem=filesystem)
    again = [row for part in parts if part["redo"] for row in part["redo"]]
    return found.filter(~pc.field("row_index").isin(again)) if again else found
