"""Reads the parts that the ledger names, wherever they lie, and the input of their rows again."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, groupby
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import SourceChanged
from nightshift.common.formats import input_rows, output_schema, owner_marker, part_names
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.part_rows import PartStore
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.batches import records
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs.generations import Generation
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.common.public_text import private
from nightshift.common.states import JobState
from nightshift.common.text import kept_message, one_line
from nightshift.producer.closed_jobs import readable

T = TypeVar("T")

PAGE_ROWS = 65_536
"""Rows whose parts one statement asks for; bounds memory and the number of statements."""

PAGE_ROOTS = 10_000
"""Root batches whose parts one statement names: a name is short."""

BATCHES_AHEAD = 4
"""Record batches that are read while earlier ones are used."""


def input_schema(job: Job) -> pa.Schema:
    """The columns of the job's input."""
    return output_schema.deserialize(job.input_schema)


def schema_of(job: Job) -> pa.Schema:
    """The columns of every part of the job; only the bare ones while no function has answered."""
    if job.output_schema is not None:
        return output_schema.deserialize(job.output_schema)
    return output_schema.bare_schema(job.spec, input_schema(job))


def pages(ledger: Ledger, job: Job) -> Iterator[list[Row]]:
    """The live parts in dataset order, page by page; a page has all children of its roots."""
    return pages_of(ledger, job, live_parts.parts_between)


def pages_of(
    ledger: Ledger,
    job: Job,
    query: Callable[[Connection, int, int, int], T],
    generation: Generation | None = None,
) -> Iterator[T]:
    """What a query says of a job's root batches, page by page: from one `seq` to before another; of
    one `generation` where one is given.

    Those of an archived job are read from its archive; raises BadInput if that is gone.
    """
    with readable(ledger, job) as own:
        yield from _pages(own, job, query, generation, max(1, PAGE_ROWS // job.spec.batch.rows))


def _pages(
    ledger: Ledger,
    job: Job,
    query: Callable[[Connection, int, int, int], T],
    generation: Generation | None,
    step: int,
) -> Iterator[T]:
    if generation is None:
        with ledger.transaction() as connection:
            begin, end = 0, live_parts.roots(connection, job.id)
    else:
        begin, end = generation.first_seq, generation.stop_seq
    for first in range(begin, end, step):
        with ledger.transaction() as connection:
            page = query(connection, job.id, first, min(first + step, end))
        if page:
            yield page


def roots(ledger: Ledger, job: Job) -> Iterator[list[Row]]:
    """The live parts in dataset order, those of one root batch together."""
    for page in pages(ledger, job):
        for _, parts in groupby(page, key=lambda part: part["seq"]):
            yield list(parts)


def names(
    ledger: Ledger, job: Job, generation: Generation | None = None
) -> Iterator[tuple[str, int]]:
    """Name and batch of each live part, in no order; those of one generation where one is given."""
    with readable(ledger, job) as own:
        yield from kept_names(own, job, generation)


def kept_names(
    ledger: Ledger, job: Job, generation: Generation | None = None
) -> Iterator[tuple[str, int]]:
    """The same of the batches that are in the ledger now, which those of an archived job are not."""
    query = live_parts.part_names_between
    return chain.from_iterable(_pages(ledger, job, query, generation, PAGE_ROOTS))


def missing(ledger: Ledger, job: Job) -> list[tuple[str, int]]:
    """Name and batch of each live part that is in neither of its places.

    The ledger is asked first, then the staging folder is listed: a part is only ever moved from there
    to its place. Each part that seems to be gone is looked for once more by its name.
    """
    named = list(names(ledger, job))
    there = set(storage.list_names(part_names.staged(job.output_uri, "")))
    there.update(storage.list_names(job.output_uri))
    return [
        (name, batch)
        for name, batch in named
        if name not in there and part_names.located(job.output_uri, name) is None
    ]


def way_back(job: Job) -> str:
    """What runs the rows of parts again that are gone, as the end of a sentence. Where the marker of the
    directory is gone with them, the command wants to be told that this is the right store.
    """
    if job.state is JobState.CANCELLED:
        return "the job is cancelled, which is final: submit it with another output directory"
    if job.archived_at is not None:
        return "the job was archived and cannot be changed: submit its spec with --new and another output directory"
    if owner_marker.read(job.output_uri) is not None:
        return f"`nightshift retry {job.id} --lost` runs their rows again"
    return (
        "the marker of its owner is gone, too: is this the right store, and mounted? "
        f"`nightshift retry {job.id} --lost --yes` runs their rows again"
    )


def place(job: Job, name: str) -> str:
    """Where a part lies now; raises SourceChanged when the part is gone."""
    uri = part_names.located(job.output_uri, name)
    if uri is None:
        raise SourceChanged(
            f"{private(part_names.final(job.output_uri, name))} is gone, the part of some rows: {way_back(job)}"
        )
    return uri


def store(job: Job) -> PartStore:
    """What reads the parts of a job."""
    return PartStore(job.spec, input_schema(job), schema_of(job))


def read(job: Job, name: str, uri: str | None = None) -> pa.Table:
    """A whole part under the job's schema; `uri` is where the part was found, if it was."""
    return store(job).read(name, uri or place(job, name))


def id_of(ledger: Ledger, job: Job, row_index: int) -> str:
    """The id of a row in the output, as a person may read it; `?` where the row is in no part now."""
    with ledger.transaction() as connection:
        found = live_parts.parts_holding(connection, job.id, [row_index])
    column = job.spec.input.id
    if not found or column is None:
        return "?"
    table = read(job, found[0]["part_name"])
    value = table.filter(pc.equal(table.column("row_index"), row_index)).column(column)
    return one_line(kept_message(repr(to_list(value)[0])))


def kept_rows(job: Job, part: Mapping[Any, Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a part without those that run again, a few thousand at a time.

    `part` has `part_name` and `redo`, as the rows of `pages` do.
    """
    name = part["part_name"]
    return store(job).kept_rows(name, place(job, name), part["redo"])


def root_table(job: Job, parts: Sequence[Mapping[Any, Any]]) -> pa.Table:
    """The kept rows of all parts of one root batch, in dataset order."""
    rows = (batch for part in parts for batch in kept_rows(job, part))
    return pa.Table.from_batches(rows, schema_of(job)).sort_by("row_index")


def read_input(
    job: Job,
    batch: Row,
    rows: RowRanges,
    columns: Sequence[str],
    cache: ReadCache | None = None,
    *,
    fixed: Collection[str] = (),
) -> input_rows.Rows:
    """Some rows of a batch read from the input again; takes and raises what `input_rows.read_rows` does.

    `batch` says where the rows lie, as the rows of `pages` do; the children of a root batch lie
    where the root lay.
    """
    with storage.within(job.roots, storage.OF_JOB):
        return input_rows.read_rows(
            job.spec,
            replace(records.descriptor(batch), rows=rows),
            columns,
            cache or ReadCache(0),
            input_schema(job),
            fixed=fixed,
        )


def read_ahead(items: Iterator[T], most: int = BATCHES_AHEAD) -> Generator[T, None, None]:
    """The same items in the same order; a thread takes up to `most` of them ahead of time.

    An error comes where its item would have come. A caller that stops early waits for the item that
    is being taken.
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        coming = deque(pool.submit(next, items, end) for _ in range(most))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield item
