"""Reading the parts that the ledger names, wherever they lie."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats import output_parts, registry
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.batches.multirange import from_multirange
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import audit, manifest

Page = TypeVar("Page")


def input_schema(job: Job) -> pa.Schema:
    """The columns of the job's input."""
    return output_parts.deserialize(job.input_schema)


def schema_of(job: Job) -> pa.Schema:
    """The columns of every part of the job; a function that never answered has the bare ones."""
    if job.output_schema is not None:
        return output_parts.deserialize(job.output_schema)
    return output_parts.bare_schema(job.spec, input_schema(job))


def index_array(rows: RowRanges) -> pa.Array:
    """Row indices as Arrow wants them."""
    return pa.array(list(rows), pa.int64())


PAGE_ROWS = 65_536
"""Rows whose parts are asked for at once; bounds memory and the number of statements."""


def pages(ledger: Ledger, job: Job) -> Iterator[list[Row]]:
    """The live parts in dataset order, page by page; the children of a root are never apart."""
    return _pages(ledger, job, audit.parts_between)


def names(ledger: Ledger, job: Job) -> Iterator[tuple[str, int]]:
    """Name and batch of each live part, in no order."""
    return chain.from_iterable(_pages(ledger, job, audit.part_names_between))


def manifest_entries(ledger: Ledger, job: Job) -> Iterator[str]:
    """The live parts in dataset order, as JSON."""
    return chain.from_iterable(_pages(ledger, job, manifest.entries_between))


def manifest_pages(ledger: Ledger, job: Job) -> Iterator[list[Row]]:
    """The same as rows, page by page."""
    return _pages(ledger, job, manifest.rows_between)


def _pages(
    ledger: Ledger, job: Job, ask: Callable[[Connection, int, int, int], Page]
) -> Iterator[Page]:
    with ledger.transaction() as connection:
        roots = audit.roots(connection, job.id)
    step = max(1, PAGE_ROWS // job.spec.batch.rows)
    for first in range(0, roots, step):
        with ledger.transaction() as connection:
            page = ask(connection, job.id, first, first + step)
        if page:
            yield page


def place(job: Job, name: str) -> str:
    """Where a part lies now; SourceChanged when it is gone."""
    uri = output_parts.located(job.output_uri, name)
    if uri is None:
        raise SourceChanged(
            f"{output_parts.final(job.output_uri, name)} is gone: see `nightshift verify {job.id}`"
        )
    return uri


def refuse_inside(output_uri: str, target: str) -> None:
    """BadInput for a file that readers of the output directory would take for one of its own."""
    folder = output_uri.rstrip("/")
    if target.startswith(f"{folder}/"):
        raise BadInput(f"{target} lies inside the output directory {folder}: name another place")


def read(job: Job, name: str) -> pa.Table:
    """A whole part, under the job's schema."""
    return read_at(job, name, place(job, name))


def provenance_of(job: Job, name: str) -> dict[str, str]:
    """What the metadata of a part says; nothing where the format has no place for it."""
    if job.spec.output.format != "parquet":
        return {}
    return registry.part_metadata(place(job, name))


def read_at(job: Job, name: str, uri: str) -> pa.Table:
    """The same of a part that was found at `uri`."""
    table = registry.read_part(uri, job.spec.output.format, _stored_schema(job, name))
    return output_parts.widened(table, schema_of(job))


def standing(job: Job, part: Row) -> Iterator[pa.RecordBatch]:
    """The rows of a part of `pages` a few thousand at a time, without those that run again."""
    name, schema = part["part_name"], schema_of(job)
    redo = None if part["redo"] is None else index_array(from_multirange(part["redo"]))
    stored = registry.iter_part_batches(
        place(job, name), job.spec.output.format, _stored_schema(job, name)
    )
    for batch in stored:
        table = output_parts.widened(pa.Table.from_batches([batch]), schema)
        if redo is not None:
            table = table.filter(pc.invert(pc.is_in(table.column("row_index"), redo)))
        yield from table.to_batches()


def _stored_schema(job: Job, name: str) -> pa.Schema:
    return output_parts.stored_schema(name, job.spec, input_schema(job), schema_of(job))
