"""Parquet examined: the columns of a file and where its batches end, by its footer."""

from nightshift.common.errors import BadInput
from nightshift.common.formats.format import Examined, Wanted
from nightshift.common.formats.parquet import plan
from nightshift.common.formats.parquet.footer import (
    first_rows,
    input_schema,
    known_nulls,
    read_footer,
)
from nightshift.common.public_text import private
from nightshift.common.storage import FileInfo


def examine(info: FileInfo, _read: FileInfo, wanted: Wanted, limit: int | None) -> Examined:
    """What a plan knows of a Parquet file, see `format.Examine`."""
    footer, column = read_footer(info.uri), wanted.id_column
    nulls = known_nulls(footer, column) if column is not None else 0
    if nulls:
        raise BadInput(
            f"{private(info.uri)}: the id column {column!r} has {nulls} nulls; every row needs an id"
        )
    rows = first_rows(footer, limit)
    return Examined(rows, input_schema(footer), cuts=plan.cuts(info.uri, footer, rows, wanted))
