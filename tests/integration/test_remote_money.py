"""A real fleet against a server that misbehaves: rows, requests, tokens and cost are those that the server counted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import spending
from nightshift.common.states import RowErrorKind
from tests.support.fleet import Fleet, logs, wait_until
from tests.support.misbehaving import CHAT, EMBEDDINGS, TRIES, Case, Misbehaving, letter
from tests.support.remote import Call, Remote, Reply, answered

pytestmark = pytest.mark.slow

UNUSABLE = {name: case for name, case in CHAT.items() if case.requests == TRIES}
USABLE = {name: case for name, case in CHAT.items() if case.requests == 1}
FEW = dict(list(UNUSABLE.items())[:4])
"""Fewer rows without an answer than pause a job."""

PRICES = {"price_per_million_prompt_tokens": 1e6, "price_per_million_output_tokens": 2e6}
"""A prompt token costs one, an output token two."""


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Fleet]:
    found = Fleet(
        tmp_path / "fleet",
        NIGHTSHIFT_DATABASE_URL=database_url,
        NIGHTSHIFT_BROKER_URL=redis_url,
    )
    try:
        found.reaper()
        found.worker("--slots", "1")
        yield found
    finally:
        found.end()


def submit(
    fleet: Fleet, server: Remote, name: str, rows: int, task: dict[str, Any], **sections: Any
) -> tuple[int, str]:
    """A job whose row k asks for case k, one request at a time; its number and what submit printed."""
    source = fleet.folder / f"{name}.parquet"
    pq.write_table(pa.table({"text": [letter(number) for number in range(rows)]}), source)
    engine = {"backend": "openai", "model": "m", "base_url": server.url, "concurrency": 1}
    spec = {
        "name": name,
        "input": {"uri": str(source)},
        "task": task,
        "engine": {**engine, **PRICES},
        "output": {"uri": str(fleet.folder / f"{name}-out")},
        # The stand-in and the rows of the table are alike each time: the share of failures says nothing.
        "limits": {"max_failed_fraction": 1, **sections},
    }
    printed = fleet.command("submit", str(fleet.spec(spec)))
    assert printed.returncode == 0, printed
    return int(fleet.status(name)["job"]), printed.stdout + printed.stderr


def at_rest(fleet: Fleet, job: int) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        status = fleet.status(job)
        closed = status["status"] in ("completed", "failed")
        return status if closed or status["status"] == "paused" else None

    return wait_until(found, what=f"the rest of job {job}: {logs(fleet.folder)[-2000:]}")


def counted(cases: dict[str, Case]) -> tuple[int, int, int, int]:
    """Requests, tokens and estimated tokens that these cases take, by hand."""
    found = cases.values()
    return (
        sum(each.requests for each in found),
        sum(each.requests * each.tokens[0] for each in found),
        sum(each.requests * each.tokens[1] for each in found),
        sum(each.requests * each.estimated for each in found),
    )


def check_money(database_url: str, job: int, cases: dict[str, Case], server: Remote) -> None:
    """What the ledger has counted is what the server has."""
    requests, prompt, output, estimated = counted(cases)
    assert len(server.calls) == requests
    ledger = Ledger(database_url)
    try:
        with ledger.transaction() as connection:
            found = spending.cost(connection, job)
    finally:
        ledger.close()
    assert (found["prompt_tokens_spent"], found["output_tokens_spent"]) == (prompt, output)
    assert found["estimated_tokens"] == estimated
    assert found["cost_is_estimate"] is (estimated > 0)
    assert float(found["cost"]) == prompt + 2 * output


def check_rows(fleet: Fleet, name: str, cases: dict[str, Case]) -> None:
    rows = ds.dataset(fleet.folder / f"{name}-out").to_table().sort_by("row_index").to_pylist()
    for row, (case_name, case) in zip(rows, cases.items(), strict=True):
        if isinstance(case.becomes, RowErrorKind):
            assert row["error"]["kind"] == case.becomes, (case_name, row)
            continue
        assert row["error"] is None, (case_name, row)
        if "output" in row:
            assert row["output"] == case.becomes, case_name
        assert row["prompt_tokens"] == case.tokens[0], case_name


ENOUGH = 20
"""Requests whose estimated tokens cost more than a budget of 50."""

GENERATE = {"kind": "generate", "prompt": "{{ text }}"}


def test_every_way_to_answer_is_paid_once_and_one_process_serves_chat_and_embeddings(
    fleet: Fleet, database_url: str
) -> None:
    cases = {**USABLE, **FEW}
    vectors = {name: case for name, case in EMBEDDINGS.items() if case.requests == 1}
    with Misbehaving(cases).running() as server:
        job, printed = submit(fleet, server, "ways", len(cases), GENERATE, budget=10_000)
        assert f"limits.budget counts the tokens that {server.url} reports" in printed
        status = at_rest(fleet, job)
        failed = sum(isinstance(case.becomes, RowErrorKind) for case in cases.values())
        assert (status["rows_done"], status["rows_failed"]) == (len(cases) - failed, failed)
        assert status["cost_is_estimate"]
        check_rows(fleet, "ways", cases)
        check_money(database_url, job, cases, server)
        shown = fleet.command("status", str(job)).stdout
        assert "(estimate: the server did not count all of its tokens)" in " ".join(shown.split())
        assert "(estimate)" in fleet.command("jobs").stdout
        first = children(database_url)

        server.calls.clear()
        server.behave = lambda call: Reply(body=list(vectors.values())[ord(call.text) - 48].body)
        task = {"kind": "embed", "text": "{{ text }}"}
        job, _ = submit(fleet, server, "vectors", len(vectors), task)
        status = at_rest(fleet, job)
        assert (status["rows_done"], status["cost_is_estimate"]) == (len(vectors), False)
        check_rows(fleet, "vectors", vectors)
        check_money(database_url, job, vectors, server)
    assert children(database_url) == first, "the slot kept its process"


def children(database_url: str) -> list[str]:
    """Every child that there was."""
    ledger = Ledger(database_url)
    try:
        with ledger.transaction() as connection:
            return list(connection.exec_driver_sql("SELECT id FROM workers ORDER BY id").scalars())
    finally:
        ledger.close()


def test_a_server_without_usable_answers_pauses_the_job_which_goes_on_once_it_is_repaired(
    fleet: Fleet, database_url: str
) -> None:
    html = CHAT["html"]
    with Misbehaving({"html": html}).running() as server:
        server.behave = lambda call: Reply(body=html.body)
        job, printed = submit(fleet, server, "page", 5, GENERATE)
        assert "limits.budget" not in printed
        status = at_rest(fleet, job)
        assert status["status"] == "paused"
        assert "returned no usable answer for 5 rows in a row" in status["reason"]
        check_money(database_url, job, dict.fromkeys("abcde", html), server)
        server.behave = answered
        assert fleet.command("resume", str(job)).returncode == 0
        assert at_rest(fleet, job)["status"] == "completed"


def test_a_budget_holds_with_a_server_that_counts_nothing(fleet: Fleet, database_url: str) -> None:
    def behave(call: Call) -> Reply:
        if len(server.calls) == ENOUGH:
            wait_until(paused, what="a beat of the child, which pauses the job")
        return answered(call, usage=None)

    def paused() -> bool:
        with psycopg.connect(database_url) as connection:
            found = connection.execute("SELECT state FROM jobs WHERE name = 'blind'").fetchone()
        return found == ("paused",)

    with Remote().running() as server:
        server.behave = behave
        job, _ = submit(fleet, server, "blind", 70, GENERATE, budget=50)
        status = at_rest(fleet, job)
        assert status["status"] == "paused", json.dumps(status)
        assert "by estimate" in status["reason"]
        assert len(server.calls) < 70
