"""Columns of the input beside the output of a job, read again where each row came from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.ledger import Row
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind
from nightshift.common.text import did_you_mean, first_few
from nightshift.producer.results import part_files
from nightshift.producer.results.sample import READ_BYTES, distinct_names


@dataclass(frozen=True, slots=True)
class WithInput:
    """Rows of one job with columns of its input: `names` says how each is called beside the output.

    `misfits` grows with the rows: why values that do not fit the type of their column are null.
    """

    job: Job
    names: Mapping[str, str]
    schema: pa.Schema
    misfits: list[Failure] = field(default_factory=list)
    _cache: ReadCache = field(default_factory=lambda: ReadCache(READ_BYTES))

    def rows_of(self, parts: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        """The rows of one root batch in order; a record that could not be read has nulls for its input.

        Holds the root batch. Raises BadInput where the input is gone or another one now.
        """
        output = part_files.root_table(self.job, parts)
        index = output.column("row_index").to_pylist()
        if not index:
            return
        try:
            wanted = RowRanges.from_indices(index)
            found = part_files.read_input(
                self.job, parts[0], wanted, list(self.names), self._cache, fixed=self.names
            )
        except SourceChanged as error:
            copy = parts[0]["arranged"]
            read = parts[0]["uri"] if copy is None else f"{copy}, the sorted copy of its rows,"
            raise BadInput(
                f"the input of job {self.job.id} cannot stand beside its output: {read} is gone, or is "
                "not what it was at submit; leave --with-input out"
            ) from error
        misfits = (why for why in found.bad.values() if why.kind is RowErrorKind.BAD_TYPE)
        self.misfits.extend(misfits)
        # `found` has exactly the rows of the output. Both are in ascending order, so the columns line up.
        inputs = found.whole()
        taken = {self.names[name]: inputs.column(name) for name in self.names}
        columns = [
            taken[each.name].cast(each.type) if each.name in taken else output.column(each.name)
            for each in self.schema
        ]
        yield from pa.Table.from_arrays(columns, schema=self.schema).to_batches()


def with_input(job: Job, columns: Sequence[str]) -> WithInput:
    """Columns of the input behind the row's index, id and pass-through columns. One that is passed
    through is there already; one with the name of an answer is called input_NAME. BadInput names a
    column that the input does not have.
    """
    inputs, output = part_files.input_schema(job), part_files.schema_of(job)
    for name in columns:
        if name not in inputs.names:
            raise BadInput(
                f"--with-input names the column {name!r}{did_you_mean(name, inputs.names)}, which the input of job {job.id} does "
                f"not have: it has {first_few(inputs.names, 20)}"
            )
    first = ["row_index", *job.spec.passed_columns]
    wanted = [name for name in dict.fromkeys(columns) if name not in first]
    names = distinct_names(wanted, output.names)
    added = [inputs.field(name).with_name(names[name]) for name in wanted]
    before = [each for each in output if each.name in first]
    behind = [each for each in output if each.name not in first]
    return WithInput(job, names, pa.schema([*before, *added, *behind]))
