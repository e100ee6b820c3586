"""examples/lakehouse: rows of jobs become part of a Delta and an Iceberg table, and anybody reads them."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.example import EXAMPLES, Example

pytestmark = pytest.mark.slow

AFTER = """\
building     3 tickets, 0 urgent
hardware     5 tickets, 1 urgent
software     4 tickets, 2 urgent
"""


def python(example: Example, *arguments: str) -> str:
    """What a script of the example prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=example.folder,
        env=example.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_jobs_append_to_a_delta_table_and_a_retry_replaces_a_part(
    example: Callable[[str], Example],
) -> None:
    lake = example("lakehouse")
    lake.nightshift("run", "march.yaml", exit_code=1)
    assert python(lake, "read.py", "lake/tickets").splitlines() == [
        "versions: 0",
        "building     2 tickets, 0 urgent",
        "hardware     3 tickets, 1 urgent",
        "nobody       1 tickets, 0 urgent",
        "software     2 tickets, 1 urgent",
    ]
    lake.nightshift("run", "april.yaml")
    said = python(lake, "read.py", "lake/tickets")
    assert "versions: 0, 1\n" in said
    assert "nobody       1 tickets" in said

    shutil.copy(lake.folder / "teams-april.json", lake.folder / "teams.json")
    lake.nightshift("retry", "march", "--failed")
    lake.nightshift("run", "march.yaml")
    assert python(lake, "read.py", "lake/tickets") == f"versions: 0, 1, 2\n{AFTER}"
    status = json.loads(lake.nightshift("status", "march", "--json"))
    assert status["table"]["version"] == "2"
    assert status["table"]["rows"] == 8
    lake.nightshift("verify", "march")

    said = lake.nightshift("run", "urgent.yaml")
    assert "10 rows left out by input.where" in said
    lake.nightshift("collect", "urgent", "--to", "urgent.jsonl")
    lines = (lake.folder / "urgent.jsonl").read_text().splitlines()
    assert [json.loads(line)["team"] for line in lines] == ["software", "software"]


def test_the_same_rows_are_in_an_iceberg_table(example: Callable[[str], Example]) -> None:
    lake = example("lakehouse")
    shutil.copy(lake.folder / "teams-april.json", lake.folder / "teams.json")
    readme = (EXAMPLES / "lakehouse" / "README.md").read_text()
    (catalogs,) = re.findall(r"^export NIGHTSHIFT_CATALOGS=(.*)$", readme, re.MULTILINE)
    lake.environment["NIGHTSHIFT_CATALOGS"] = catalogs.replace("'$PWD'", str(lake.folder))[1:-1]
    python(lake, "make_namespace.py", "lake", "support")
    lake.nightshift("run", "iceberg.yaml")
    said = python(lake, "read.py", "lake.support.tickets")
    assert said.partition("\n")[2] == AFTER
