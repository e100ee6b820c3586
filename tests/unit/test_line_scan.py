"""The scan of a JSONL file against a plain reader of the same bytes."""

import tracemalloc

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nightshift.common import storage
from nightshift.common.formats.jsonl import plan
from nightshift.common.formats.jsonl.plan import scan_lines

CONTENT = st.lists(
    st.sampled_from([b"\n", b"\n\n", b"\r\n", b" ", b"\t", b"\x0b", b"\x00", b"{", b"\xc3\xa4"])
    | st.binary(max_size=9)
    | st.integers(60, 140).map(lambda size: b"x" * size),
    max_size=60,
).map(b"".join)


def plain(content: bytes, batch_rows: int, limit: int | None) -> tuple[int, int, list[int]]:
    """Line by line: the rows, where the first begins, and the byte after each batch's last row."""
    at = start = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    after = []
    *lines, last = content[start:].split(b"\n")
    for line in (*(line + b"\n" for line in lines), last):
        at += len(line)
        if line.strip(b" \t\n\r\x0b\x0c"):
            after.append(at)
    after = after[:limit]
    ends = after[batch_rows - 1 :: batch_rows]
    return len(after), start, [*ends, *after[-1:]] if len(after) % batch_rows else ends


def scanned(uri: str, batch_rows: int, limit: int | None = None) -> tuple[int, int, list[int]]:
    found = scan_lines(uri, batch_rows, limit)
    return found.rows, found.start, list(found.ends)


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(
    content=CONTENT,
    batch_rows=st.integers(1, 40),
    limit=st.none() | st.integers(1, 60),
    chunk_bytes=st.sampled_from([1, 2, 7, 63, 64, 65, 200, 2**20]),
)
@example(content=b"\xef\xbb\xbf\n", batch_rows=1, limit=None, chunk_bytes=1)
@example(content=b" \n{}\n\n \r\n{}", batch_rows=1, limit=None, chunk_bytes=2)
def test_every_row_and_every_end_is_where_a_plain_reader_finds_it(
    tmp_path, monkeypatch, content, batch_rows, limit, chunk_bytes
):
    monkeypatch.setattr(plan, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert scanned(str(path), batch_rows, limit) == plain(content, batch_rows, limit)


@pytest.mark.parametrize("batch_rows", [1, 3, 256, 10**9])
@pytest.mark.parametrize(
    "line", [b"1\n", b'{"a": 1}\n', b"\n \n{}\r\n\n", b"{" + b"y" * 5000 + b"\n"]
)
def test_files_of_many_chunks_are_scanned_alike(tmp_path, monkeypatch, line, batch_rows):
    monkeypatch.setattr(plan, "CHUNK_BYTES", 2**17)
    content = b'{"first": 0}\n' + line * (5 * 2**17 // len(line)) + b"{}"
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert scanned(str(path), batch_rows) == plain(content, batch_rows, None)


def test_a_line_larger_than_all_chunks_is_one_row_in_bounded_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as out:
        out.write(b"{}\n" + b" " * 3 + b"{")
        for _ in range(40):
            out.write(b"z" * 2**20)
        out.write(b"\n\n{}")
    size = path.stat().st_size
    tracemalloc.start()
    assert scanned(str(path), 1) == (3, 0, [3, size - 3, size])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 2**20


def test_an_object_in_a_store_is_scanned_like_a_file():
    content = b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}\n' * 1000
    storage.write_bytes("memory://scan/a.jsonl", content)
    assert scanned("memory://scan/a.jsonl", 7) == plain(content, 7, None)
    storage.delete("memory://scan/a.jsonl")
