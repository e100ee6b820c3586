"""CSV examined: the columns of a file, and the types that their texts fit, out of its Parquet copy."""

from nightshift.common.formats.csv.types import schema_of, types_of
from nightshift.common.formats.format import Examined, Wanted
from nightshift.common.formats.parquet import plan
from nightshift.common.formats.parquet.footer import first_rows, read_footer
from nightshift.common.storage import FileInfo


def examine(_info: FileInfo, read: FileInfo, wanted: Wanted, limit: int | None) -> Examined:
    """What a plan knows of a CSV file, see `format.Examine`."""
    footer = read_footer(read.uri)
    types, rows = types_of(footer), first_rows(footer, limit)
    return Examined(
        rows, schema_of(types), cuts=plan.cuts(read.uri, footer, rows, wanted), texts=types
    )
