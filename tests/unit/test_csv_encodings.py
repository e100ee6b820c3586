"""CSV in another encoding: the printed command makes a file of it that has the same rows."""

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import InputSpec
from nightshift.producer.submit.planning.planner import plan

TEXT = "id,text\n1,grün\n2,ça va\n"


def planned(folder: Path, name: str) -> pa.Schema:
    return plan(InputSpec(uri=str(folder / name)), 10, output_uri=str(folder / "out")).schema


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-16-le", "\ufeff"),
        ("utf-16-be", "\ufeff"),
        ("utf-16-le", ""),
        ("utf-16-be", ""),
        ("utf-32-le", "\ufeff"),
        ("utf-32-be", "\ufeff"),
        ("latin-1", ""),
    ],
)
def test_the_command_of_the_message_makes_utf_8_of_the_file(
    tmp_path: Path, encoding: str, mark: str
) -> None:
    (tmp_path / "in.csv").write_bytes((mark + TEXT).encode(encoding))
    with pytest.raises(BadInput) as refused:
        planned(tmp_path, "in.csv")
    [command] = re.findall("`(.+)`", str(refused.value))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "in-utf8.csv").read_text() == TEXT
    assert planned(tmp_path, "in-utf8.csv").names == ["id", "text"]
