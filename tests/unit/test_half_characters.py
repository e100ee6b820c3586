"""Rows of JSON lines with half of a character are counted at submit, whatever the pieces of the scan."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightshift.common.formats.jsonl import half_characters
from nightshift.common.formats.jsonl.half_characters import HalfCharacters
from nightshift.common.formats.jsonl.lines import parse_line
from nightshift.common.spec import InputSpec
from nightshift.common.text import MARK
from nightshift.producer.submit.planning import planner

PIECES = st.sampled_from(["\ud800", "\udc00", "\U0001f600", "\\", "ud800", "a", "\u4e2d"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@settings(max_examples=300)
@example(texts=["\\ud800\udc00"], size=1)
@example(texts=["\\" * 2 + "\\ud800\udc00"], size=7)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), size=st.integers(1, 40))
def test_exactly_the_rows_that_are_read_with_a_mark_are_counted(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int
) -> None:
    lines = [json.dumps({"text": text}).encode() for text in texts]
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    marked = sum(MARK in parse_line(line)["text"] for line in lines)
    assert half_characters.count(str(path), len(lines)) == marked
    half, data = HalfCharacters(), path.read_bytes()
    for at in range(0, len(data), size):
        piece = bytearray(data[at : at + size])
        half.take(piece, len(piece))
    assert half.found or not marked


def test_a_plan_counts_marked_rows_by_file_and_up_to_the_limit(tmp_path: Path) -> None:
    row = {"text": "half \ud800"}
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for _ in range(5)))
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "\U0001f600"}))
    found = planner.plan(InputSpec(uri=str(tmp_path)), 2)
    assert sorted(found.marked.values()) == [0, 5]
    assert sum(planner.plan(InputSpec(uri=str(tmp_path), limit=3), 2).marked.values()) == 3
