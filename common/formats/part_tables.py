"""Tables of parts: the column of errors, the ledger's row errors, rows that have no answer."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats.output_schema import ERROR_TYPE
from nightshift.common.formats.values import to_list
from nightshift.common.row_errors import Failure, RowError
from nightshift.common.states import RowErrorKind
from nightshift.common.text import kept_message


def under_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows under the job's schema; a column that the table lacks is null."""
    columns = [
        table.column(field.name)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def column_sum(table: pa.Table, column: str) -> int:
    """The sum of a column of tokens; 0 where the task has none."""
    if column not in table.column_names:
        return 0
    return int(pc.sum(table.column(column)).as_py() or 0)


def error_column(failures: Sequence[Failure | None]) -> pa.Array:
    """The column `error`: null where the row has an answer."""
    return pa.array(
        [
            None if failure is None else {"kind": str(failure.kind), "message": failure.message}
            for failure in failures
        ],
        ERROR_TYPE,
    )


def row_errors(table: pa.Table, id_column: str | None) -> list[RowError]:
    """The row errors of a part for the ledger, from the column `error`, so that both are the same."""
    failed = table.filter(table.column("error").is_valid())
    indices = failed.column("row_index").to_pylist()
    ids = to_list(failed.column(id_column)) if id_column else [None] * len(indices)
    return [
        RowError(
            index,
            None if row_id is None else kept_message(str(row_id)),
            RowErrorKind(error["kind"]),
            error["message"],
        )
        for index, row_id, error in zip(
            indices, ids, failed.column("error").to_pylist(), strict=True
        )
    ]


def failures_table(
    schema: pa.Schema, row_index: Sequence[int], passed: pa.Table | None, failure: Failure
) -> pa.Table:
    """Rows that all have the same error, for a batch that never got an answer.

    `passed` has the id and pass-through columns of these rows, where the source could be read.
    """
    columns = {
        "row_index": pa.array(row_index, pa.int64()),
        "error": error_column([failure] * len(row_index)),
    }
    if passed is not None:
        for name in set(passed.column_names) & set(schema.names):
            columns[name] = passed.column(name).cast(schema.field(name).type)
    return under_schema(pa.table(columns), schema)
