"""Parquet files that would end the process are refused from the bytes of their footer: pyarrow does not catch what the
C++ library throws for a column chunk.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.formats.format import Wanted
from nightshift.common.formats.parquet.examine import examine
from nightshift.common.formats.parquet.footer import read_footer
from nightshift.common.formats.parquet.foreign_footer import UnsoundFooterError, checked_metadata
from nightshift.common.storage import stat
from tests.support.unsound_parquet import NUMBER, TABLE, altered, encrypted

VALUE = b"\x08" + NUMBER.to_bytes(8, "little")

UNSOUND: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an encrypted column": (lambda path: encrypted(path, "text"), "columns are encrypted"),
    "all columns encrypted": (
        lambda path: encrypted(path, "id", "text", "tags.list.element"),
        "columns are encrypted",
    ),
    "a short statistic": (lambda path: altered(path, VALUE, b"\x03abc"), "a statistic is shorter"),
    "an empty statistic": (lambda path: altered(path, VALUE, b"\x00"), "a statistic is shorter"),
    "a histogram of other levels": (
        lambda path: altered(path, b"<)\x06\x19&\x00\n\x00\x00", b"<)\x06\x19\x16\n\x00\x00"),
        "a histogram has other levels",
    ),
    "a size of texts of numbers": (
        lambda path: altered(
            path, b"<)\x06\x19&\x00\n\x00\x00", b"<\x16\x06\x19\x06\x19&\x00\n\x00\x00"
        ),
        "has a size of its texts",
    ),
    "another type": (
        lambda path: altered(path, b"\x1c\x15\x04\x19%", b"\x1c\x15\x02\x19%"),
        "another type",
    ),
}
"""Files, and why each is refused."""


@pytest.mark.parametrize("kind", UNSOUND)
def test_a_file_that_would_end_the_process_is_refused(tmp_path: Path, kind: str) -> None:
    write, why = UNSOUND[kind]
    path = write(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=why):
        examine(stat(str(path)), stat(str(path)), Wanted(10, 2**20, id_column="id"), None)


TYPES: list[Any] = [
    pa.array([1, 2, None]),
    pa.array(["a", None, "b"]),
    pa.array([b"1234", b"5678", None], pa.binary(4)),
    pa.array([True, False, None]),
    pa.array([1.5, None, 2], pa.float32()),
    pa.array([None, None, None], pa.float64()),
    pa.array([1, 2, 3], pa.decimal128(20, 2)),
    pa.array([[1, 2], [], None]),
    pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    pa.array(["x", "x", "y"]).dictionary_encode(),
    pa.array([0, 1, None], pa.timestamp("us", "UTC")),
    pa.array([0, 1, None], pa.timestamp("ns")),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_page_index": True, "compression": "zstd"},
        {"use_deprecated_int96_timestamps": True, "version": "1.0"},
        {"write_statistics": False, "use_dictionary": False},
        {"write_page_checksum": True, "row_group_size": 1, "data_page_version": "2.0"},
    ],
)
def test_a_sound_file_of_every_type_is_read_as_pyarrow_reads_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{at}": each for at, each in enumerate(TYPES)}), path, **options)
    assert read_footer(str(path)).metadata.equals(pq.ParquetFile(path).metadata)


def test_a_footer_that_is_larger_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{at}": range(200) for at in range(20)}), path, row_group_size=2)
    found = read_footer(str(path)).metadata
    assert found.serialized_size > 2**17
    assert found.num_row_groups == 100


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1\x00\x00\x00\x00PAR1", b"a" * 100])
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="missing or damaged"):
        read_footer(str(path))


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def with_footer(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Writes a small file with another footer."""
    pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = change(content[begin:-8])
    path.write_bytes(content[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


@pytest.mark.parametrize("kind", [1, 3, 5, 7, 8, 9, 12, 13])
@pytest.mark.timeout(30)
def test_a_list_that_says_to_be_longer_than_the_footer_is_refused_at_once(
    tmp_path: Path, kind: int
) -> None:
    """pyarrow takes the lower 32 bits of its length, which are 0."""
    field = b"\x09" + varint(100 * 2) + bytes([0xF0 | kind]) + varint(2**62)
    path = with_footer(tmp_path / "a.parquet", lambda footer: footer[:-1] + field + b"\0")
    with pytest.raises(BadInput, match="it ends too early"):
        read_footer(str(path))


@pytest.mark.parametrize("number", [4 + 2**16, 4 + 2**32, -1, 0])
def test_a_field_whose_number_does_not_fit_16_bits_is_refused(tmp_path: Path, number: int) -> None:
    """pyarrow takes the lower 16 bits, and would see row groups that nobody has checked."""
    coded = varint(number << 1 ^ number >> 63 if number < 0 else number << 1)

    def renumbered(footer: bytes) -> bytes:
        # The list of row groups is the fourth field, one number behind the third.
        at = footer.index(b"\x16\x06\x19") + 2
        return footer[:at] + b"\x09" + coded + footer[at + 1 :]

    path = with_footer(tmp_path / "a.parquet", renumbered)
    with pytest.raises(BadInput, match="damaged"):
        read_footer(str(path))


def test_random_damage_of_a_footer_never_reaches_the_column_chunks(tmp_path: Path) -> None:
    """Of 12,000 such files none ended a process; before, one in a hundred did."""
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, write_page_index=True)
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    chance = random.Random(1)
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(begin, len(content) - 8)] = chance.randrange(256)
        path.write_bytes(changed)
        try:
            with path.open("rb") as file:
                metadata = checked_metadata(file)
        except (UnsoundFooterError, OSError, pa.ArrowException):
            continue
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for at in range(group.num_columns):
                assert group.column(at).total_compressed_size is not None
                assert group.column(at).statistics is not False


def test_the_message_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "a.parquet", "text")
    with pytest.raises(BadInput, match=re.escape(f"{path}: columns are encrypted, and Nightshift")):
        read_footer(str(path))
