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
from nightshift.common.states import JobState
from nightshift.producer.serve import store_layout
from nightshift.producer.serve.console.new_job import assembled, naming_column
from nightshift.producer.serve.ledger import files, quotas, tenants
from nightshift.producer.serve.model_table import ModelTable
from nightshift.worker.engines.function.host import Rows
from tests.integration.test_retry import Site as Running
from tests.integration.test_retry import moody
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


def columns(page: str) -> list[tuple[str, str]]:
    """Names and types of the columns that a page shows."""
    return re.findall(r'<th scope="col">(\S+) <small>([^<]+)</small>', page)


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


def test_a_tenant_that_may_run_no_function_is_offered_none(
    site: Site, ledger: Ledger, tmp_path: Path
) -> None:
    page = f"/jobs/new/rows?input={tmp_path}/acme/in"
    write_rows(tmp_path / "acme/in", [("a.jsonl", 3)])
    assert 'name="callable"' in site.browser("user").get(page).text
    with ledger.transaction() as connection:
        known = tenants.get(connection, "acme")
        assert known is not None
        tenants.change(connection, replace(known, callables=False))
    without = site.browser("user").get(page)
    assert (without.status_code, "Python function" in without.text) == (200, False)
    assert 'name="callable"' in site.browser("ops").get(page).text


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


@pytest.mark.parametrize(
    "given",
    [
        {"as": "yaml", "spec": "", "do": "look"},
        {"as": "yaml", "spec": "- 1", "do": "submit"},
        {"as": "yaml", "spec": "5", "do": "preview"},
        {"input": "/in", "names_rows": "\0"},
    ],
)
def test_a_form_that_is_no_spec_at_all_is_a_mistake(site: Site, given: dict[str, object]) -> None:
    assert send(site.browser("user"), "/jobs/new", given).status_code == 400


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
    assert columns(shown.text) == [("text", "string"), ("more", "int64")]
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
    assert columns(page) == [("text", "string"), ("more", "int64")]
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


def test_rows_are_shown_before_anything_else_is_asked(site: Site, tmp_path: Path) -> None:
    user = site.browser("user")
    asked = user.get("/jobs/new").text
    assert 'name="input"' in asked
    assert 'name="prompt"' not in asked
    place = uploaded(user, "a.csv", f"id,text\nx,{HOSTILE}\ny,\n".encode())
    page = user.get(place).text
    assert columns(page) == [("id", "string"), ("text", "string")]
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "<code>{{ text }}</code>" in page, "a column to put into the prompt"
    assert "Let id name the rows" in page
    assert '<option value="id" selected>' not in page, "offered, and not set"
    uri = re.search(r'name="input" value="([^"]+)"', page)[1]  # type: ignore[index]
    typed = {"input": uri, "model": "org/small", "prompt": "Say {{ text }}", "pool": "far"}
    named = send(user, "/jobs/new", {**typed, "names_rows": "id"}).text
    assert '<option value="id" selected>' in named
    assert "Let id name the rows" not in named
    for kept in ('value="org/small"', "Say {{ text }}", 'value="far"'):
        assert kept in named
    outside = user.get(f"/jobs/new/rows?input={tmp_path}/elsewhere.csv")
    assert (outside.status_code, "outside the folders" in outside.text) == (400, True)
    assert f'value="{tmp_path}/elsewhere.csv"' in outside.text
    moved = user.get(f"/jobs/new?input={uri}&name=a").headers["location"]
    assert moved == f"/jobs/new/rows?input={uri}&name=a"


NAMING: dict[str, tuple[list[str], list[list[object]], str]] = {
    "differ": (["text", "ID"], [["a", 1], ["a", 2]], "ID"),
    "repeated": (["id"], [[1], [1]], ""),
    "missing": (["id"], [[1], [None]], ""),
    "another name": (["key"], [[1], [2]], ""),
    "no rows": (["id"], [], ""),
}


@pytest.mark.parametrize(("names", "rows", "name"), NAMING.values(), ids=NAMING)
def test_the_column_that_seems_to_name_rows(
    names: list[str], rows: list[list[object]], name: str
) -> None:
    assert naming_column(names, rows) == name


def test_a_model_is_picked_from_the_list_of_the_operator(ledger: Ledger, tmp_path: Path) -> None:
    table = tmp_path / "models.yaml"
    table.write_text(yaml.safe_dump(TABLE.model_dump(mode="json", exclude_unset=True)))
    known = {"serve_store": str(tmp_path / "store"), "serve_models": table}
    user = Site(ledger, load_settings().model_copy(update=known)).browser("user")
    page = user.get(uploaded(user, "a.csv", b"text\nhello\n")).text
    assert "<option>big</option>" in page
    assert 'name="other_model"' in page
    allow(ledger, "acme", tmp_path)
    uri = re.search(r'name="input" value="([^"]+)"', page)[1]  # type: ignore[index]
    typed = {"input": uri, "model": "big", "prompt": "{{ text }}"}
    assert "<option selected>big</option>" in send(user, "/jobs/new", {**typed, "do": "look"}).text


def again_loud(rows: Rows) -> list[dict[str, object]]:
    return [{"louder": f"{row['loud']}!"} for row in rows]


class Results(Running):
    """A site whose jobs run here."""

    def __init__(self, site: Site, ledger: Ledger, folder: Path) -> None:
        super().__init__(ledger, folder)
        self.user = site.browser("user")
        self.given: dict[str, object] = {"do": "submit", "callable": "rules:moody", "drawn": "x"}

    def submitted(self, **fields: object) -> str:
        """Submits the form without a folder; returns the folder that the server has chosen."""
        done = send(self.user, "/jobs/new", {**self.given, **fields})
        assert done.status_code == 303, done.text
        self.job_id = int(str(done.headers["location"]).rpartition("/")[2])
        return self.job.output_uri

    def stored(self) -> int:
        with self.ledger.transaction() as connection:
            return quotas.stored(connection, "acme")[1]


@pytest.fixture
def results(site: Site, ledger: Ledger, tmp_path: Path) -> Results:
    with ledger.transaction() as connection:
        known = tenants.get(connection, "acme")
        assert known is not None
        tenants.change(connection, replace(known, roots=()))
    return Results(site, ledger, tmp_path)


def upload_rows(user: TestClient, count: int) -> str:
    rows = b"".join(b'{"id": "r-%d", "text": "hello"}\n' % row for row in range(count))
    page = user.get(uploaded(user, "my rows.jsonl", rows)).text
    return re.search(r'name="input" value="([^"]+)"', page)[1]  # type: ignore[index]


def test_without_a_folder_the_results_lie_in_the_store_and_the_same_form_is_one_job(
    results: Results, tmp_path: Path
) -> None:
    given = {"input": upload_rows(results.user, 30), "name": "rows"}
    first = results.submitted(**given)
    assert re.fullmatch(f"{tmp_path}/store/acme/outputs/rows-[0-9a-f]{{8}}", first)
    assert results.submitted(**given) == first
    assert results.submitted(**given, priority="0", budget="") == first
    assert results.submitted(**given, drawn="y") != first, "another page"
    assert results.submitted(**given, id="id") != first, "another spec"
    pilot = results.submitted(**given, do="pilot", pilot_rows="5")
    assert pilot.startswith(f"{first}-pilot/")
    text = yaml.safe_dump(assembled({**given, "callable": "rules:moody"}, None))
    of_yaml = results.submitted(**{"as": "yaml", "spec": text})
    assert of_yaml == first


def test_results_in_the_store_are_for_their_tenant_alone(
    results: Results, site: Site, ledger: Ledger, tmp_path: Path
) -> None:
    place = results.submitted(input=upload_rows(results.user, 30), name="rows")
    assert results.work(moody()) is JobState.COMPLETED
    page = results.user.get(f"/jobs/{results.job_id}/rows?which=any").text
    assert "HELLO" in page
    again = {**results.given, "input": f"{place}/*.parquet", "name": "again"}
    allow(ledger, "other", tmp_path)
    own = {"input": f"{tmp_path}/acme/a.jsonl", "output": f"{tmp_path}/acme/out"}
    for field in ({"input": place}, {"output": place}, {"input": f"{place}/../*"}):
        refused = send(site.browser("other"), "/jobs/new", {**again, **own, **field})
        assert (refused.status_code, "outside the folders" in refused.text) == (400, True), field
    link = Path(place) / "part-9.parquet"
    link.symlink_to(tmp_path / "store/other/outputs/a/part-0.parquet")
    assert "outside the folders" in send(results.user, "/jobs/new", again).text
    link.unlink()
    second = results.submitted(**again)
    assert second.startswith(f"{tmp_path}/store/acme/outputs/again-")
    assert results.work(again_loud) is JobState.COMPLETED


@pytest.mark.slow
def test_bytes_of_results_in_the_store_count_until_their_job_is_deleted(
    results: Results, site: Site, ledger: Ledger, world: World
) -> None:
    uri = upload_rows(results.user, 40)
    before = results.stored()
    place = results.submitted(**{"as": "yaml"}, spec=spec_of_batches(uri, 10))
    assert results.stored() == before
    results.run(moody(), 2)
    half = results.stored() - before
    assert half == sum(each.stat().st_size for each in Path(place).rglob("part-*"))
    assert results.work(moody()) is JobState.COMPLETED
    whole = sum(each.stat().st_size for each in Path(place).rglob("part-*"))
    assert results.stored() - before == whole > half
    world.do("UPDATE tenants SET max_bytes = %s WHERE name = 'acme'", before + whole)
    full = send(results.user, "/jobs/new", {**results.given, "input": uri, "name": "more"})
    assert (full.status_code, "stored and may have" in full.text) == (429, True)
    assert world.ask("SELECT count(*) AS jobs FROM jobs")[0].jobs == 1
    key = {"authorization": f"Bearer {site.keys['user']}"}
    gone = site.browser().delete(f"/api/jobs/{results.job_id}", headers=key)
    assert gone.status_code == 200, gone.text
    assert not Path(place).exists()
    assert results.stored() == before
    world.do("UPDATE tenants SET max_bytes = NULL")
    assert results.submitted(input=uri, name="more")


def test_a_job_whose_folder_somebody_names_is_not_counted(
    site: Site, ledger: Ledger, world: World, tmp_path: Path
) -> None:
    write_rows(tmp_path / "acme/in", [("a.jsonl", 30)])
    user = site.browser("user")
    given = form(tmp_path / "acme")
    assert send(user, "/jobs/new", given).status_code == 303
    del given["output"]
    assert send(user, "/jobs/new", {**given, "name": "chosen"}).status_code == 303
    found = world.ask("SELECT output_uri, stored_bytes, outputs FROM jobs ORDER BY id")
    own = f"{tmp_path}/store/acme/outputs"
    assert [(row.stored_bytes, row.outputs) for row in found] == [(None, own), (None, own)]
    assert found[0].output_uri == f"{tmp_path}/acme/out"
    assert found[1].output_uri.startswith(f"{tmp_path}/acme/outputs/chosen-")


def test_an_operator_without_a_store_has_the_results_beside_the_input(
    ledger: Ledger, tmp_path: Path
) -> None:
    write_rows(tmp_path / "in", [("a.jsonl", 30)])
    given = {"input": f"{tmp_path}/in/*.jsonl", "callable": "rules:loud", "name": "loud"}
    ops = Site(ledger, load_settings()).browser("ops")
    assert f"<code>{tmp_path}</code>" in ops.get(f"/jobs/new/rows?input={tmp_path}/in/a*").text
    assert send(ops, "/jobs/new", {"do": "submit", **given}).status_code == 303
    table = {"input": "iceberg:lake.a.t", "callable": "rules:loud"}
    nowhere = send(ops, "/jobs/new", {"do": "submit", **table})
    assert (nowhere.status_code, "name one" in nowhere.text) == (400, True)
    assert 'name="output" value="" placeholder="e.g. /data/answers" required' in nowhere.text


def spec_of_batches(uri: str, rows: int) -> str:
    given = assembled({"input": uri, "callable": "rules:moody", "name": "rows"}, None)
    return yaml.safe_dump({**given, "batch": {"rows": rows}})


def test_the_folders_of_a_tenant_in_the_store() -> None:
    assert store_layout.inputs("/store/", "acme") == "/store/acme/inputs"
    assert store_layout.outputs("/store/", "acme") == "/store/acme/outputs"
