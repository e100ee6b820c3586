"""Writes the table of types of docs/tables.md from common/formats/table_types.py; what stands around it is
prose. Run by `make docs`.
"""

import re
import sys
from pathlib import Path

import pyarrow as pa

from nightshift.common.formats.table_types import TableFormat, table_type

PAGE = Path(__file__).with_name("tables.md")

HEAD = "| column | Delta | Iceberg |\n|---|---|---|\n"

GROUPS: tuple[tuple[pa.DataType, ...], ...] = (
    (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 2)),
    (pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())),
    (pa.int8(), pa.int16()),
    (pa.uint8(),),
    (pa.uint16(),),
    (pa.uint32(),),
    (pa.float16(),),
    (pa.list_(pa.float32(), 384), pa.large_list(pa.float32())),
    (pa.list_(pa.float16(), 384),),
    (pa.large_string(), pa.string_view(), pa.json_(), pa.dictionary(pa.int32(), pa.string())),
    (pa.large_binary(), pa.binary_view()),
    (pa.binary(16), pa.uuid()),
    (pa.decimal32(9, 2), pa.decimal64(9, 2), pa.decimal256(9, 2)),
    (pa.date64(),),
    (pa.timestamp("s"), pa.timestamp("ms")),
    (pa.timestamp("us", "Europe/Rome"), pa.timestamp("ms", "+02:00")),
    (pa.time32("s"), pa.time32("ms"), pa.time64("us")),
    (pa.timestamp("ns"), pa.time64("ns"), pa.duration("us")),
    (pa.uint64(), pa.decimal256(39, 2), pa.null()),
)
"""Types that become the same, a line each."""


def written(page: str) -> str:
    """The page with its table as the function has it now; ValueError where the table is missing."""
    if page.count(HEAD) != 1:
        raise ValueError(f"{PAGE.name} has {page.count(HEAD)} tables of types, not 1")
    lines = "".join(map(_line, GROUPS))
    return re.sub(re.escape(HEAD) + r"(\| `.*\n)*", lambda _: HEAD + lines, page)


def _line(kinds: tuple[pa.DataType, ...]) -> str:
    names = ", ".join(f"`{_name(kind)}`" for kind in kinds)
    return f"| {names} | {_cell(kinds, 'delta')} | {_cell(kinds, 'iceberg')} |\n"


def _cell(kinds: tuple[pa.DataType, ...], table: TableFormat) -> str:
    found = [table_type(kind, table) for kind in kinds]
    if found == list(kinds):
        return "the same"
    (only,) = set(found)
    return "refused" if only is None else f"`{_name(only)}`"


def _name(kind: pa.DataType) -> str:
    text = re.sub(r"extension<arrow\.(\w+)>", r"\1", str(kind))
    return re.sub(r"dictionary<values=(\w+),.*>", r"dictionary<\1>", text.replace("item: ", ""))


def main() -> int:
    """Writes the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
