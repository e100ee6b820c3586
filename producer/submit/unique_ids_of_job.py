"""Ids that must differ (`input.unique_id`), over all rows of a job that grows: those of new files beside
those that the job has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.formats import output_schema
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.storage import FileInfo
from nightshift.producer.external_sort.repeats import RepeatCount
from nightshift.producer.external_sort.spill import spill_folder
from nightshift.producer.results import part_files
from nightshift.producer.submit import table_input
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.unique_ids import READ_BYTES, READ_ROWS, Ids, ids_of, refuse

Known = Sequence[SourceFile] | None
"""The files of a job when ids were read; None where no ids are read."""


def check(ledger: Ledger, job: Job, plan: Plan) -> Known:
    """Return the files of the job that were read. BadInput if an id of the plan's new files is in another row of the
    job, too.
    """
    if not job.spec.input.unique_id:
        return None
    with ledger.transaction() as connection:
        known = jobs.files(connection, job.id)
    schema = output_schema.deserialize(job.input_schema)
    # A file that another append stored since the plan was made is not new. This append leaves that file
    # out again when it stores the rest.
    new = plan.only({file.uri for file in plan.files} - {file.uri for file in known})
    new = replace(new.behind(sum(file.rows for file in known)), schema=schema)
    with spill_folder() as folder:
        count = RepeatCount(folder)
        for rows, ids in ids_of(job.spec, new):
            count.add(rows, ids)
        for rows, ids in _known_ids(ledger, job, known):
            count.add(rows, ids)
        refuse(job.spec, new, count.result())
    return known


def still_known(connection: Connection, job: Job, known: Known) -> bool:
    """Whether the files of the job are those whose ids were read. The caller holds the lock of appends."""
    return known is None or jobs.files(connection, job.id) == known


def _known_ids(ledger: Ledger, job: Job, files: Sequence[SourceFile]) -> Iterator[Ids]:
    """The ids of the rows of these files, which the job has: out of the files where they are as planned,
    else out of the parts. A row that is in neither has no id in the output.
    """
    there = [file for file in files if file.rows and _is_as_planned(file)]
    if there:
        found = planner.plan(
            job.spec.input,
            READ_ROWS,
            batch_bytes=READ_BYTES,
            columns=job.spec.read_columns,
            infos=[FileInfo(file.uri, file.size, file.fingerprint) for file in there],
            output_uri=job.output_uri,
            may_be_empty=True,
            known=output_schema.deserialize(job.input_schema),
            copy_table=table_input.copier(),
        )
        at = {file.uri: file.first_row for file in there}
        placed = [replace(file, first_row=at[file.uri]) for file in found.files]
        schema = output_schema.deserialize(job.input_schema)
        yield from ids_of(job.spec, replace(found, files=placed, schema=schema))
    gone = [(file.first_row, file.first_row + file.rows) for file in files if file not in there]
    if any(start < stop for start, stop in gone):
        yield from _ids_of_parts(ledger, job, gone)


def _ids_of_parts(ledger: Ledger, job: Job, ranges: Sequence[tuple[int, int]]) -> Iterator[Ids]:
    assert job.spec.input.id is not None
    for page in part_files.pages(ledger, job):
        for part in page:
            table = part_files.read(job, part["part_name"])
            index = table.column("row_index").to_numpy()
            wanted = np.logical_or.reduce([(index >= a) & (index < b) for a, b in ranges])
            if wanted.any():
                ids = table.column(job.spec.input.id).filter(pa.array(wanted))
                yield index[wanted].tolist(), ids


def _is_as_planned(file: SourceFile) -> bool:
    if file.format == "table":
        return True  # a version stays as it is
    try:
        info = storage.stat(file.uri)
    except FileNotFoundError:
        return False
    return (info.size, info.fingerprint) == (file.size, file.fingerprint)
