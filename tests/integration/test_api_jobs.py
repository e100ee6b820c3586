"""Jobs over HTTP: what the command line says and does, held to the tenant of the key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_facts
from nightshift.producer.serve.ledger import keys, tenants
from tests.support.fleet import function_spec, write_rows
from tests.support.serve import Door, free_port


class Tenants:
    """A server, and a key for each of three people."""

    def __init__(self, door: Door, ledger: Ledger) -> None:
        self.door = door
        self.folder = door.folder / "acme"
        with ledger.transaction() as connection:
            for name in ("acme", "other", "ops"):
                tenants.ensure(connection, name)
            connection.exec_driver_sql(
                "UPDATE tenants SET callables = true, roots = ARRAY[%s] WHERE name = 'acme'",
                (str(self.folder),),
            )
            self.keys = {
                name: keys.create(connection, name, name, role, None)[1]
                for name, role in (("acme", "user"), ("other", "user"), ("ops", "operator"))
            }
            self.keys["reader"] = keys.create(connection, "acme", "reader", "viewer", None)[1]

    def ask(self, who: str, method: str, path: str, **given: Any) -> httpx.Response:
        return httpx.request(
            method,
            f"http://127.0.0.1:{self.door.port}{path}",
            headers={"authorization": f"Bearer {self.keys[who]}"},
            timeout=30,
            **given,
        )

    def spec(self, name: str = "loud") -> dict[str, Any]:
        if not (self.folder / "in").is_dir():
            write_rows(self.folder / "in", [("a.jsonl", 30)])
        return function_spec(name, self.folder / "in", self.folder / name)


@pytest.fixture
def people(tmp_path: Path, database_url: str, redis_url: str, ledger: Ledger) -> Iterator[Tenants]:
    """The tenants acme and other, and an operator."""
    allowed = {"NIGHTSHIFT_ALLOWED_MODULES": "rules"}
    door = Door(tmp_path / "door", database_url, redis_url, {}, **allowed)
    door.environment["NIGHTSHIFT_CALLABLE_PATHS"] = str(door.folder)
    try:
        door.serve()
        yield Tenants(door, ledger)
    finally:
        door.end()


def test_a_spec_becomes_a_job_that_is_looked_at_and_changed(people: Tenants) -> None:
    made = people.ask("acme", "POST", "/api/jobs", json=people.spec())
    assert made.status_code == 201, made.text
    job = made.json()["job"]
    again = people.ask("acme", "POST", "/api/jobs", json=people.spec())
    assert (again.status_code, again.json()["job"], again.json()["new"]) == (200, job, False)
    place = f"/api/jobs/{job}"
    seen = people.ask("reader", "GET", place).json()
    assert seen == people.door.status(job) | {
        key: seen[key] for key in ("seconds_since_sign", "finished_at") if key in seen
    }
    reason = people.ask("reader", "GET", f"{place}/explain").json()["reasons"][0]
    assert reason["kind"] in ("no_reaper", "no_worker")
    changed = people.ask("acme", "PATCH", place, json={"priority": -5, "max_parallel": 3}).json()
    assert changed["changed"]["priority"] == {"old": 0, "new": -5}
    assert (
        people.ask("acme", "POST", f"{place}/pause").json()["changed"]["state"]["new"] == "paused"
    )
    assert people.ask("acme", "POST", f"{place}/resume").json()["job"] == job
    assert people.ask("acme", "GET", f"{place}/errors").json()["rows"] == []
    assert people.ask("acme", "POST", f"{place}/cancel").json()["changed"]["state"]["new"] == (
        "cancelled"
    )
    history = people.ask("acme", "GET", f"{place}/history").json()
    assert [(row["action"], row["who"]) for row in history["changes"]] == [
        (action, "key 1 acme (acme)") for action in ("submit", "set", "pause", "resume", "cancel")
    ]
    assert people.ask("acme", "DELETE", f"{place}?output=true").status_code == 200
    assert people.ask("acme", "GET", place).status_code == 404


def test_a_job_by_http_is_sorted_only_where_its_spec_says_so(
    people: Tenants, ledger: Ledger
) -> None:
    orders = {}
    for name, batch in (("auto", {}), ("asked", {"arrange": "prefix"})):
        spec = people.spec(name) | {"batch": batch}
        spec["input"]["columns"] = ["text"]
        made = people.ask("acme", "POST", "/api/jobs", json=spec)
        assert made.status_code == 201, made.text
        with ledger.transaction() as connection:
            job = jobs.get(connection, made.json()["job"])
            assert job is not None
            sorted_now = job_facts.is_arranged(connection, job.id)
        orders[name] = (job.spec.batch.arrange, sorted_now)
    assert orders == {"auto": ("none", False), "asked": ("prefix", True)}


def test_a_tenant_sees_and_reaches_nothing_of_another(people: Tenants) -> None:
    job = people.ask("acme", "POST", "/api/jobs", json=people.spec()).json()["job"]
    for method, path in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        *(("GET", each) for each in ("/explain", "/history", "/errors")),
        *(("POST", each) for each in ("/pause", "/resume", "/cancel", "/retry")),
    ]:
        given = {"json": {"priority": -1}} if method == "PATCH" else {}
        found = people.ask("other", method, f"/api/jobs/{job}{path}", **given)
        assert found.status_code == 404, (method, path)
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    assert people.ask("other", "GET", "/api/jobs?tenant=acme").json()["data"] == []
    assert [row["job"] for row in people.ask("ops", "GET", "/api/jobs").json()["data"]] == [job]
    assert people.ask("ops", "GET", "/api/jobs?tenant=other").json()["data"] == []
    assert people.ask("reader", "POST", f"/api/jobs/{job}/pause").status_code == 403
    assert people.ask("other", "POST", "/api/jobs", json=people.spec("mine")).status_code == 400


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"priority": 1}, "priority 1 is above 0"),
        ({"input": {"uri": "/etc/passwd", "format": "jsonl"}}, "outside the folders"),
        ({"input": {"uri": "acme/in"}}, "outside the folders"),
        ({"input": {"uri": "{root}/../other"}}, "outside the folders"),
        ({"output": {"uri": "{root}-2/x"}}, "outside the folders"),
        ({"output": {"uri": "s3://bucket/x"}}, "outside the folders"),
        ({"name": "a\x00b"}, "NUL"),
        ({"nonsense": 1}, "nonsense"),
        ({"input": 3}, "input"),
    ],
)
def test_a_spec_is_held_to_its_tenant_in_one_sentence(
    people: Tenants, change: dict[str, Any], says: str
) -> None:
    text = json.dumps(people.spec() | change).replace("{root}", str(people.folder))
    found = people.ask("acme", "POST", "/api/jobs", content=text)
    assert found.status_code == 400, found.text
    assert says in found.json()["error"]["message"]
    assert people.ask("acme", "GET", "/api/jobs").json()["data"] == []


def test_a_link_below_the_folder_of_a_tenant_leads_nowhere(people: Tenants) -> None:
    spec = people.spec()
    outside = people.door.folder / "secret"
    write_rows(outside, [("a.jsonl", 3)])
    (people.folder / "in" / "b.jsonl").symlink_to(outside / "a.jsonl")
    found = people.ask("acme", "POST", "/api/jobs", json=spec)
    assert found.status_code == 400, found.text
    assert "outside the folders" in found.json()["error"]["message"]


def test_a_tenant_reaches_nothing_that_the_server_may_not(people: Tenants) -> None:
    people.door.environment["NIGHTSHIFT_ALLOWED_ROOTS"] = "/srv/allowed"
    people.door.port = free_port()
    people.door.environment["NIGHTSHIFT_SERVE_PORT"] = str(people.door.port)
    people.door.serve()
    found = people.ask("acme", "POST", "/api/jobs", json=people.spec())
    assert found.status_code == 400, found.text
    said = found.json()["error"]["message"]
    assert "outside the folders that NIGHTSHIFT_ALLOWED_ROOTS names" in said
    assert "/srv/allowed" not in said, "which may be the folder of another tenant"


def test_rows_of_jobs_count_against_what_the_tenant_may_have_at_once(
    people: Tenants, ledger: Ledger
) -> None:
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE tenants SET max_rows = 50 WHERE name = 'acme'")
    first = people.ask("acme", "POST", "/api/jobs", json=people.spec("one"))
    assert first.status_code == 201, first.text
    refused = people.ask("acme", "POST", "/api/jobs", json=people.spec("two"))
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    error = refused.json()["error"]
    assert error["code"] == "rows_limit_exceeded"
    assert error["message"] == (
        "more than 20 rows are asked for, 30 are open already, and this tenant may have 50 at once"
    )
    assert len(people.ask("acme", "GET", "/api/jobs").json()["data"]) == 1
    people.ask("acme", "POST", f"/api/jobs/{first.json()['job']}/cancel")
    assert people.ask("acme", "POST", "/api/jobs", json=people.spec("two")).status_code == 201
    over = people.ask("acme", "POST", f"/api/jobs/{first.json()['job']}/retry")
    assert over.status_code == 429, over.text
    assert people.ask("acme", "POST", "/api/jobs", json=people.spec("two")).status_code == 200


def test_the_job_of_another_tenant_is_not_given_to_who_sends_its_spec(
    people: Tenants, ledger: Ledger
) -> None:
    with ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE tenants SET callables = true, roots = ARRAY[%s] WHERE name = 'other'",
            (str(people.folder),),
        )
    assert people.ask("acme", "POST", "/api/jobs", json=people.spec()).status_code == 201
    found = people.ask("other", "POST", "/api/jobs", json=people.spec())
    assert (found.status_code, found.json()["error"]["code"]) == (409, "output_taken")


@pytest.mark.parametrize("body", ["", "[]", "{", "nul", '{"a": ' + "[" * 100_000])
def test_what_is_no_object_is_said(people: Tenants, body: str) -> None:
    found = people.ask("acme", "POST", "/api/jobs", content=body)
    assert found.status_code == 400, found.text
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}
