"""`nightshift sample --html`: what the data says is shown and never obeyed."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.producer.cli.app import app
from nightshift.producer.reaper import finish
from nightshift.producer.submit.submit import submit
from tests.integration.test_retry import Site

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(2)>",
    "\"><a href='javascript:alert(3)'>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- ]]> &amp; \x1b[31m \u202e",
    "plain words",
]
FAILED = 5


class Seen(HTMLParser):
    """What a browser makes of a page: its elements, and the text that stands in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.classes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.classes += [value or "" for name, value in attrs if name == "class"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def hostile(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if any(row["<b>id"] == FAILED for row in rows):
        raise ValueError("<script>alert(4)</script>")
    return [
        {
            "text": f"<i>{row['text']}</i>",
            "vector": [0.25] * 100,
            "nested": {"<k>": [row["text"]]},
        }
        for row in rows
    ]


class HostileSite(Site):
    """Names and values of columns, answers and errors are all markup."""

    def submit(self, form: str = "parquet", rows: int = 40, batch: int = 10) -> None:
        source = self.folder / "in.parquet"
        texts = HOSTILE * (rows // len(HOSTILE))
        pq.write_table(pa.table({"<b>id": range(len(texts)), "text": texts}), source)
        spec = {
            "name": "hostile",
            "input": {"uri": str(source), "id": "<b>id"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:x"},
            "output": {"uri": str(self.folder / "out <&>")},
            "batch": {"rows": batch},
        }
        self.job_id = submit(self.ledger, parse_spec(spec, "test"), Settings()).job_id


@pytest.fixture
def nightshift(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Runs the command on this test's ledger."""
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> HostileSite:
    found = HostileSite(ledger, tmp_path)
    found.submit(rows=36, batch=6)
    found.run(hostile)
    finish.finish(ledger, found.job_id)
    return found


def test_a_page_shows_hostile_rows_and_obeys_none(
    site: HostileSite, nightshift: Callable[..., Result]
) -> None:
    done = nightshift("sample", "hostile", "-n", "36", "--html", "page.html")
    assert (done.exit_code, done.stdout) == (0, "36 rows in page.html\n"), done.stderr
    text = (site.folder / "page.html").read_text(encoding="utf-8")
    seen = Seen(text)
    assert not {"script", "img", "a", "i", "b", "iframe", "link"} & {*seen.tags}
    assert not any(name.startswith("on") or name in ("src", "href") for name in seen.attributes)
    assert seen.tags.count("style") == 1
    assert seen.tags.count("article") == 36
    assert seen.classes.count("failed") == 1
    for said in HOSTILE[:4]:
        assert seen.texts.count(said) >= 6
        assert seen.texts.count(f"<i>{said}</i>") == 6
    assert "<b>id" in seen.texts
    assert any("function_error: " in each and "<script>alert(4)" in each for each in seen.texts)
    assert "[0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, … 100 numbers]" in seen.texts
    assert not {"\x1b", "\u202e"} & {*text}
    assert "default-src 'none'" in text


def test_the_same_seed_gives_the_same_bytes(
    site: HostileSite, nightshift: Callable[..., Result]
) -> None:
    pages = []
    for name, seed in (("a.html", "1"), ("b.html", "1"), ("c.html", "2")):
        nightshift("sample", "hostile", "-n", "5", "--seed", seed, "--html", name)
        pages.append((site.folder / name).read_bytes())
    assert pages[0] == pages[1] != pages[2]


def test_an_answer_with_the_name_of_an_input_column_stands_beside_it(
    site: HostileSite, nightshift: Callable[..., Result]
) -> None:
    done = nightshift("sample", "hostile", "-n", "36", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["row_index"] for row in rows] == list(range(36))
    for row in rows:
        assert row["input"]["input_text"] == HOSTILE[row["row_index"] % 6]
        if row["row_index"] == FAILED:
            assert row["error"]["kind"] == "function_error"
        else:
            assert row["output"]["text"] == f"<i>{row['input']['input_text']}</i>"
            assert row["output"]["vector"] == [0.25] * 100


def test_errors_alone_can_be_drawn(site: HostileSite, nightshift: Callable[..., Result]) -> None:
    done = nightshift("sample", "hostile", "--errors", "--json")
    assert [json.loads(line)["row_index"] for line in done.stdout.splitlines()] == [FAILED]
    site.retry()
    site.run(lambda rows: [{} for _ in rows])
    finish.finish(site.ledger, site.job_id)
    none = nightshift("sample", "hostile", "--errors")
    assert (none.exit_code, none.stderr) == (2, "nightshift: job 1 has no failed rows\n")


def test_a_page_is_no_part_of_the_output(
    site: HostileSite, nightshift: Callable[..., Result]
) -> None:
    with site.ledger.transaction() as connection:
        job = jobs.find(connection, "hostile")
    done = nightshift("sample", "hostile", "--html", f"{job.output_uri}/page.html")
    assert done.exit_code == 2
    assert "inside the output directory" in done.stderr
