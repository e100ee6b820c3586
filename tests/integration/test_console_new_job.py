"""The page of a new job: what a form gives, who may, what is shown before, and that a spec becomes one job."""

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import yaml
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve import store_layout
from nightshift.producer.serve.console.new_job import assembled
from nightshift.producer.serve.ledger import files, tenants
from nightshift.producer.serve.model_table import ModelTable
from tests.support.console_site import ORIGIN, Site, send
from tests.support.fleet import function_spec, write_rows
from tests.support.world import World

HOSTILE = "<script>alert(1)</script>"

ENGINE = {"backend": "openai", "model": "big/model", "base_url": "http://127.0.0.1:9/v1"}

TABLE = ModelTable.model_validate(
    {"models": {"big": {"aliases": ["b"], "pool": "gpus", "engine": ENGINE}}}
)

FORMS = {
    "a function": (
        {"callable": "rules:loud", "input": "/in/a b.csv", "output": "/out", "priority": "3"},
        {
            "name": "a-b",
            "input": {"uri": "/in/a b.csv"},
            "output": {"uri": "/out"},
            "priority": 3,
            "task": {"kind": "function"},
            "engine": {"callable": "rules:loud", "backend": "function"},
        },
    ),
    "a model of the operator": (
        {"model": "b", "prompt": "{{ a }}", "choices": "good, bad,", "budget": "2.5"},
        {
            "pool": "gpus",
            "engine": ENGINE,
            "task": {
                "kind": "generate",
                "prompt": "{{ a }}",
                "output": {"choice": ["good", "bad"]},
            },
            "limits": {"budget": 2.5},
        },
    ),
    "its pool is the form's": (
        {"model": "big", "pool": "mine"},
        {"pool": "mine", "engine": ENGINE, "task": {"kind": "generate"}},
    ),
    "any model": (
        {"model": "org/small", "max_tokens": "many"},
        {
            "engine": {"backend": "vllm", "model": "org/small"},
            "task": {"kind": "generate", "sampling": {"max_tokens": "many"}},
        },
    ),
    "nothing": ({}, {"task": {"kind": "generate"}}),
}


@pytest.mark.parametrize(("form", "sections"), FORMS.values(), ids=FORMS)
def test_a_form_as_the_sections_of_a_spec(
    form: dict[str, str], sections: dict[str, object]
) -> None:
    assert assembled(form, TABLE) == sections


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    settings = load_settings().model_copy(update={"serve_store": str(tmp_path / "store")})
    found = Site(ledger, settings)
    allow(ledger, "acme", tmp_path)
    return found


def allow(ledger: Ledger, tenant: str, folder: Path) -> None:
    """Lets a tenant run functions over what lies in this folder of acme."""
    with ledger.transaction() as connection:
        known = tenants.get(connection, tenant)
        assert known is not None
        roots = (str(folder / "acme"),)
        tenants.change(connection, replace(known, roots=roots, callables=True))


def form(folder: Path, **fields: object) -> dict[str, object]:
    given = {"input": f"{folder}/in", "output": f"{folder}/out", "callable": "rules:loud"}
    return {"do": "submit", **given, **fields}


def test_only_who_may_submit_sees_the_page_and_a_foreign_form_is_refused(site: Site) -> None:
    viewer, user = site.browser("viewer"), site.browser("user")
    assert (viewer.get("/jobs/new").status_code, user.get("/jobs/new").status_code) == (403, 200)
    assert "/jobs/new" not in viewer.get("/").text
    assert "/jobs/new" in user.get("/").text
    for path in ("/jobs/new", "/jobs/new/file"):
        assert send(viewer, path, {"do": "preview"}).status_code == 403
        assert send(user, path, {"do": "preview"}, "http://evil.example").status_code == 403
    assert send(user, "/jobs/new", {"do": "explode"}).status_code == 400


def test_a_mistake_is_told_and_what_was_written_stays_as_text(site: Site) -> None:
    user = site.browser("user")
    for given, said in (
        ({"as": "yaml", "spec": f"name: [{HOSTILE}"}, "no valid YAML"),
        ({"as": "yaml", "spec": f'name: "a\\0{HOSTILE}"'}, "holds a NUL"),
        ({"input": HOSTILE, "output": "x", "callable": "rules:loud"}, "outside the folders"),
        ({"input": HOSTILE, "output": "x", "model": "m", "max_tokens": "many"}, "max_tokens"),
    ):
        wrong = send(user, "/jobs/new", {"do": "submit", **given})
        assert (wrong.status_code, said in wrong.text) == (400, True), wrong.text
        assert HOSTILE not in wrong.text
        assert "&lt;script&gt;" in wrong.text


def test_a_spec_becomes_one_job_and_a_user_stays_below_its_roots(
    site: Site, world: World, tmp_path: Path
) -> None:
    write_rows(tmp_path / "in", [("a.jsonl", 30)])
    write_rows(tmp_path / "acme/in", [("a.jsonl", 30)])
    user = site.browser("user")
    outside = send(user, "/jobs/new", form(tmp_path))
    assert (outside.status_code, "outside the folders of this tenant" in outside.text) == (
        400,
        True,
    )
    spec = yaml.safe_dump(function_spec("loud", tmp_path / "in", tmp_path / "out"))
    first, again = (
        send(site.browser("ops"), "/jobs/new", {"do": "submit", "as": "yaml", "spec": spec})
        for _ in range(2)
    )
    assert first.status_code == 303, first.text
    assert first.headers["location"] == again.headers["location"]
    own = send(user, "/jobs/new", form(tmp_path / "acme"))
    assert own.status_code == 303, own.text
    rows = world.ask(
        "SELECT j.name, j.tenant, sum(b.row_count) AS rows FROM jobs j JOIN batches b ON b.job_id = j.id GROUP BY j.id ORDER BY j.id"
    )
    assert [tuple(row) for row in rows] == [("loud", "ops", 30), ("in", "acme", 30)]
    assert [row.who for row in world.ask("SELECT who FROM audit_log WHERE action = 'submit'")] == [
        "key 4 ops (ops)",
        "key 2 user (acme)",
    ]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_first_rows_an_estimate_and_a_pilot_of_a_prompt_without_a_column(
    site: Site, tmp_path: Path, format: str
) -> None:
    folder = tmp_path / "acme"
    folder.mkdir()
    table = pa.table({"text": ["one"] * 12})
    with (folder / f"in.{format}").open("wb") as file:
        if format == "parquet":
            pq.write_table(table, file)
        elif format == "csv":
            csv.write_csv(table, file)
        else:
            file.write(b'{"text": "one"}\n' * 12)
    given = {
        "input": f"{folder}/in.{format}",
        "output": f"{folder}/out",
        "model": "org/small",
        "prompt": "hello",
    }
    user = site.browser("user")
    shown = send(user, "/jobs/new", {"do": "preview", **given})
    assert shown.status_code == 200, shown.text
    assert shown.text.count("<article") == 5
    assert shown.text.count("hello</") >= 5
    estimated = send(user, "/jobs/new", {"do": "estimate", **given})
    assert estimated.status_code == 200, estimated.text
    assert "24 tokens in all" in estimated.text
    assert send(user, "/jobs/new", {"do": "pilot", "pilot_rows": "6", **given}).status_code == 303


def test_first_rows_with_their_prompts_and_an_estimate_leave_nothing_behind(
    site: Site, world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "acme"
    folder.mkdir()
    lines = ['{"text": "<b>one</b>", "more": 1}', '{"text": null, "more": 2}']
    (folder / "in.jsonl").write_text("\n".join([*lines, *lines[:1] * 10]) + "\n")
    given = {
        "input": f"{folder}/in.jsonl",
        "output": f"{folder}/out",
        "model": "org/small",
        "prompt": "Say {{ text }}!",
    }
    user = site.browser("user")
    shown = send(user, "/jobs/new", {"do": "preview", **given})
    assert shown.status_code == 200, shown.text
    assert shown.text.count("<article") == 5
    assert "Say &lt;b&gt;one&lt;/b&gt;!" in shown.text
    assert "with the columns text, more" in shown.text
    assert "cannot be rendered" in shown.text
    assert 'value="org/small"' in shown.text, "the form stays"
    estimated = send(user, "/jobs/new", {"do": "estimate", **given})
    assert estimated.status_code == 200, estimated.text
    assert re.search(r"rows +12 in 1 batch", estimated.text)
    as_yaml = send(user, "/jobs/new", {"do": "yaml", **given})
    assert "prompt: Say {{ text }}!" in as_yaml.text
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl"]
    assert world.ask("SELECT 1 FROM jobs") == []


def test_a_pilot_is_a_job_of_some_rows(site: Site, world: World, tmp_path: Path) -> None:
    write_rows(tmp_path / "acme/in", [("a.jsonl", 300)])
    user = site.browser("user")
    done = send(user, "/jobs/new", form(tmp_path / "acme", do="pilot", pilot_rows="20"))
    assert done.status_code == 303, done.text
    rows = world.ask(
        "SELECT j.name, j.tenant, sum(b.row_count) AS rows FROM jobs j JOIN batches b ON b.job_id = j.id GROUP BY j.id"
    )
    assert [tuple(row) for row in rows] == [("in-pilot", "acme", 20)]
    wrong = send(user, "/jobs/new", form(tmp_path / "acme", do="pilot", pilot_rows="none"))
    assert "whole number from 1 to 10,000" in wrong.text


def uploaded(browser: TestClient, name: str, data: bytes) -> str:
    """Uploads an input; returns the address that the browser is led to."""
    sent = browser.post("/jobs/new/file", files={"file": (name, data)}, headers={"origin": ORIGIN})
    assert sent.status_code == 303, sent.text
    return str(sent.headers["location"])


def test_an_uploaded_input_is_read_by_jobs_of_its_tenant_and_stays_while_they_are_open(
    site: Site, world: World, ledger: Ledger, tmp_path: Path
) -> None:
    user, other, ops = (site.browser(who) for who in ("user", "other", "ops"))
    place = uploaded(user, "my rows.csv", b"text,more\nhello,1\nyou,2\n")
    assert place.endswith("&name=my-rows")
    page = user.get(place).text
    uri = re.search(r'name="input" value="([^"]+)"', page)[1]  # type: ignore[index]
    assert uri.startswith(f"{tmp_path}/store/acme/inputs/file-")
    assert uri.endswith(".csv")
    given = form(tmp_path / "acme", input=uri, name="rows")
    assert "with the columns text, more" in send(user, "/jobs/new", {**given, "do": "preview"}).text
    allow(ledger, "other", tmp_path)
    assert send(other, "/jobs/new", given).status_code == 400, "of another tenant"
    folder = uri.rpartition("/")[0]
    for pattern in (folder, f"{folder}/*.csv", f"{folder}/../inputs/*"):
        assert send(user, "/jobs/new", {**given, "input": pattern}).status_code == 400
    done = send(user, "/jobs/new", given)
    assert done.status_code == 303, done.text
    file = Path(uri).stem
    assert file in user.get("/files").text
    refused = send(user, f"/files/{file}/delete", {})
    assert (refused.status_code, "job 1 reads the file" in refused.text) == (409, True)
    world.do("UPDATE api_files SET expires_at = now() - interval '1 day'")
    with ledger.transaction() as connection:
        assert files.take_unwanted(connection, 10, 3600) == []
    assert send(user, "/jobs/1/move", {"do": "cancel"}).status_code == 303
    world.do("UPDATE jobs SET closed_at = now()")
    with ledger.transaction() as connection:
        assert files.take_unwanted(connection, 10, 3600) == [(file, uri)]
    wrong = ops.post("/jobs/new/file", files={"file": ("a.xlsx", b"x")}, headers={"origin": ORIGIN})
    assert (wrong.status_code, "save it as CSV" in wrong.text) == (400, True)


def test_the_folder_of_inputs_of_a_tenant() -> None:
    assert store_layout.inputs("/store/", "acme") == "/store/acme/inputs"
