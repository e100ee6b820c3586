"""The page of rows: three lines a row that open, what failed tells why first, and names of rows are whole."""

import re
from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.submit import submit
from nightshift.worker.engines.function.host import Rows
from tests.integration.test_retry import Site as Running
from tests.support.console_site import Site
from tests.support.fleet import function_spec

HOSTILE = "<script>alert(1)</script>"

NAME = f"https://example.com/{HOSTILE}/a-name-that-is-longer-than-any-column-of-a-table-"


def told(rows: Rows) -> list[dict[str, object]]:
    if any(row["id"].endswith("3") for row in rows):
        raise ValueError(HOSTILE)
    return [{"output": "", "note": None, "call": '{"tool": {"name": "look"}}'} for _ in rows]


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Running:
    """A job over five rows with names; row 3 fails."""
    lines = [f'{{"id": "{NAME}{row}", "text": "{HOSTILE}", "more": [1, 2]}}\n' for row in range(5)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("".join(lines))
    data = function_spec("told", tmp_path / "in", tmp_path / "out", batch={"rows": 1})
    data["input"]["id"] = "id"
    found = Running(ledger, tmp_path)
    found.job_id = submit(ledger, parse_spec(data, "here"), Settings()).job_id
    found.run(told)
    return found


def test_a_row_has_its_whole_name_its_lines_and_what_opens(site: Running, ledger: Ledger) -> None:
    browser = Site(ledger).browser("ops")
    page = browser.get(f"/jobs/{site.job_id}/rows").text
    assert HOSTILE not in page
    rows = page.split('<details class="card row')[1:]
    assert len(rows) == 5
    for row in rows:
        number = re.search(r'id="row-(\d)"', row)[1]  # type: ignore[index]
        name = NAME.replace("<", "&lt;").replace(">", "&gt;")
        assert f'<code class="id">{name}{number}</code>' in row
        assert "<dt>id</dt>" not in row, "once"
        assert row.startswith(" failed") is (number == "3")
        opening = re.findall(r'<details [^>]*id="([^"]+)"', row)
        assert len(opening) == len(set(opening)) > 0
        assert all(each.startswith(f"row-{number}-") for each in opening)
        if number == "3":
            assert row.index("function_error") < row.index("<dl")
            assert row.index(">error</dt>") < row.index(
                "&lt;script&gt;", row.index('<dl class="out"')
            )
            assert "<dt>output</dt>" not in row
        else:
            assert '<dt>output</dt><dd><span class="none">empty text</span>' in row
            assert '<dt>note</dt><dd><span class="none">null</span>' in row
            assert "<b>tool</b> <details" in row
    alone = browser.get(f"/jobs/{site.job_id}/rows?row=3").text
    assert re.search(r'<details class="card row failed" id="row-3" open>', alone)
