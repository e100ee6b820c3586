"""Text files in another encoding: the printed command makes a file of them that has the same rows."""

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import InputSpec
from nightshift.producer.submit.planning.planner import plan

CSV = "id,text\n1,grün\n2,ça va für 5 €\n"
LINES = '{"id": 1, "text": "grün"}\n{"id": 2, "text": "ça va für 5 €"}\n'

ENCODINGS = [
    ("utf-16-le", "\ufeff"),
    ("utf-16-be", "\ufeff"),
    ("utf-16-le", ""),
    ("utf-16-be", ""),
    ("utf-32-le", "\ufeff"),
    ("utf-32-be", "\ufeff"),
]


def planned(folder: Path, name: str) -> pa.Schema:
    return plan(InputSpec(uri=str(folder / name)), 10, output_uri=str(folder / "out")).schema


@pytest.mark.parametrize(
    ("name", "text", "encoding", "mark"),
    [
        *[("in.csv", CSV, *each) for each in [*ENCODINGS, ("cp1252", "")]],
        *[("in.jsonl", LINES, *each) for each in ENCODINGS],
    ],
)
def test_the_command_of_the_message_makes_utf_8_of_the_file(
    tmp_path: Path, name: str, text: str, encoding: str, mark: str
) -> None:
    (tmp_path / name).write_bytes((mark + text).encode(encoding))
    with pytest.raises(BadInput) as refused:
        planned(tmp_path, name)
    [command] = re.findall("`(.+)`", str(refused.value))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    converted = name.replace(".", "-utf8.")
    assert (tmp_path / converted).read_text() == text
    assert planned(tmp_path, converted).names == ["id", "text"]


@pytest.mark.parametrize("before", [0, 3, 70_000])
@pytest.mark.parametrize("fields", [1, 2, 3])
def test_the_message_names_the_line_whatever_the_width_of_its_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], before: int, fields: int
) -> None:
    bad = [b"\xe4", b"9,\xe4", b"9,\xe4,3"][fields - 1]
    rows = b"".join(b'%d,"two\nlines of g\xc3\xbcn"\n' % number for number in range(before))
    (tmp_path / "in.csv").write_bytes(b"id,text\n" + rows + bad + b"\n1,ok\n")
    with pytest.raises(BadInput, match=rf"in\.csv line {2 + 2 * before}: not UTF-8: convert it"):
        planned(tmp_path, "in.csv")
    assert capfd.readouterr().err == ""


def test_a_character_that_a_block_divides_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.common.formats.csv.records.BLOCK_BYTES", 1001)
    monkeypatch.setattr("nightshift.common.formats.csv.records.DECODED_BYTES", 7)
    (tmp_path / "in.csv").write_text("id,text\n" + "".join(f"{n},{'€' * 9}\n" for n in range(500)))
    assert planned(tmp_path, "in.csv").names == ["id", "text"]


def test_a_character_that_the_end_of_the_file_cuts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes("id,text\n1,5 €".encode()[:-1])
    with pytest.raises(BadInput, match=r"in\.csv line 2: not UTF-8"):
        planned(tmp_path, "in.csv")
