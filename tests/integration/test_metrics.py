"""The metrics of a small real fleet agree with its ledger, whatever happens to its processes."""

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.submit import submit
from tests.support import exported
from tests.support import fleet as fleets
from tests.support.fleet import RULES, Fleet, function_spec, write_rows

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
Ask = Callable[[str], list[tuple[Any, ...]]]

wait_until = partial(fleets.wait_until, seconds=120)


TIRED = """
def tired(rows):
    is_let(rows)
    return picky(rows)
"""
"""Every tenth row fails."""


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Fleet]:
    (tmp_path / "rules.py").write_text(RULES + TIRED)
    found = Fleet(
        tmp_path,
        NIGHTSHIFT_DATABASE_URL=database_url,
        NIGHTSHIFT_BROKER_URL=redis_url,
        NIGHTSHIFT_ALLOWED_MODULES="rules",
        NIGHTSHIFT_CALLABLE_PATHS=str(tmp_path),
        NIGHTSHIFT_RUN_DIR=str(tmp_path / "run"),
        NIGHTSHIFT_METRICS_PORT="0",
        NIGHTSHIFT_LOG_FORMAT="json",
    )
    yield found
    found.end()


def lines(fleet: Fleet, number: int) -> list[dict[str, Any]]:
    """What the process of that number logged; each line must be one JSON object."""
    (path,) = fleet.folder.glob(f"*.{number}.log")
    return [json.loads(line) for line in path.read_text().splitlines(keepends=False)]


def port(fleet: Fleet, number: int) -> int:
    def said() -> Any:
        try:
            return [line["port"] for line in lines(fleet, number) if "port" in line]
        except ValueError:  # a line is being written
            return None

    found = wait_until(said, what=f"the listener of process {number}")
    return int(found[0])


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        said = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(said)
        for sample in family.samples
    }


def total(samples: Samples, name: str, /, **labels: str) -> float:
    """The sum over all series of that name that have these labels."""
    return sum(
        value
        for (sample, found), value in samples.items()
        if sample == name and labels.items() <= dict(found).items()
    )


def submitted(fleet: Fleet, ledger: Ledger, name: str, rows: int) -> None:
    source = fleet.folder / f"in-{name}"
    write_rows(source, [("a.parquet", rows)])
    engine = {"backend": "function", "callable": "rules:tired"}
    spec = function_spec(name, source, fleet.folder / name, engine=engine, batch={"rows": 5})
    submit(ledger, JobSpec.model_validate(spec), Settings())


def closed(ask: Ask) -> None:
    def is_closed() -> bool:
        return ask("SELECT status FROM job_progress") == [("completed",)]

    wait_until(is_closed, what="the end of the job")


@pytest.mark.slow
def test_both_sides_agree_with_the_ledger_and_a_killed_child_keeps_its_counts(
    fleet: Fleet, ask: Ask, ledger: Ledger, database_url: str
) -> None:
    """One fleet for the whole night: a child is killed, the job ends, Postgres goes and returns."""
    fleet.let(0)
    submitted(fleet, ledger, "night", 400)
    fleet.reaper()
    worker = fleet.worker()
    machine, reaper = port(fleet, 1), port(fleet, 0)

    def rows_of(samples: Samples) -> float:
        return total(samples, "nightshift_rows_total")

    wait_until(lambda: rows_of(scrape(machine)) > 20 or fleet.let(5), what="the first rows")
    # The child holds batches that it may not end.
    wait_until(
        lambda: total(scrape(machine), "nightshift_lease_renewals_total", outcome="held") > 0,
        what="the renewal of a lease",
    )
    before = rows_of(scrape(machine))
    (child,) = [line["pid"] for line in lines(fleet, 1) if line["event"] == "child_started"]
    os.kill(child, signal.SIGKILL)
    fleet.let()
    wait_until(
        lambda: total(scrape(machine), "nightshift_child_exits_total", reason="died") >= 1,
        what="the death of a child",
    )
    assert rows_of(scrape(machine)) >= before
    closed(ask)

    # What a child had committed at its death and not counted yet is less than a group of batches.
    (ran, failed), *_ = ask(
        "SELECT sum(row_count), sum(rows_failed) FROM attempts WHERE outcome IN ('done', 'split')"
    )
    wait_until(
        lambda: total(scrape(machine), "nightshift_stage_seconds_total", stage="infer") > 0,
        what="the next update of a child's sums",
    )
    counted = scrape(machine)
    assert ran - 5 * 32 <= rows_of(counted) <= ran
    assert total(counted, "nightshift_rows_total", outcome="failed") <= failed == 40
    batches = dict(ask("SELECT outcome, count(*)::float8 FROM attempts GROUP BY outcome"))
    assert total(counted, "nightshift_batches_total", outcome="done") == pytest.approx(
        batches["done"], abs=32
    )
    assert total(counted, "nightshift_batches_total", outcome="died") == batches.get("lost", 0)
    # The child may have died between the two counts of one batch.
    assert total(counted, "nightshift_batch_seconds_count") == pytest.approx(
        total(counted, "nightshift_batches_total", outcome="done"), abs=1
    )
    assert total(counted, "nightshift_engine_loads_total", outcome="ready") >= 2
    assert total(counted, "nightshift_children") == 1
    assert total(counted, "nightshift_engine_seconds_total") > 0
    assert total(counted, "nightshift_lease_renewals_total", outcome="held") > 0

    def done_rows() -> float:
        return total(scrape(reaper), "nightshift_job_rows", state="done")

    wait_until(lambda: done_rows() == 360, what="a look at the ledger that is new")
    seen = scrape(reaper)
    assert total(seen, "nightshift_ledger_up") == 1
    assert total(seen, "nightshift_job_rows", name="night", state="failed") == 40
    assert total(seen, "nightshift_job_rows", name="night", state="total") == 400
    assert total(seen, "nightshift_job_batches", name="night", state="done") == 80
    assert total(seen, "nightshift_job_status", name="night", status="completed") == 1
    assert total(seen, "nightshift_pool_workers", pool="default") == 1
    assert total(seen, "nightshift_reaper_rounds_total") > 0

    scraped = {name for name, _ in {**counted, **seen}}
    known = {name for metric in exported.metrics().values() for name in metric.series}
    assert scraped <= known
    absent = {name for name in known - scraped if not name.startswith("nightshift_gpu")}
    assert absent == set()
    # The folder of a replaced child is gone, so it does not grow with them.
    assert len(list((fleet.folder / "run" / "metrics").glob("*/w-*"))) <= 1

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(200) == 0
    assert list((fleet.folder / "run" / "metrics").glob("*")) == []
    a_postgres_that_is_away_leaves_a_scrape_that_says_so(reaper, database_url)
    fleet.processes[0].send_signal(signal.SIGTERM)
    assert fleet.processes[0].wait(200) == 0
    events = {line["event"] for number in (0, 1) for line in lines(fleet, number)}
    assert {"metrics_served", "reaper_ended", "child_ended", "engine_ready", "drained"} <= events


def a_postgres_that_is_away_leaves_a_scrape_that_says_so(reaper: int, database_url: str) -> None:
    name = database_url.rpartition("/")[2].partition("?")[0]

    def up() -> float:
        return total(scrape(reaper), "nightshift_ledger_up")

    with psycopg.connect(database_url.replace(name, "postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        wait_until(lambda: up() == 0, what="a ledger that is away")
        seen = scrape(reaper)
        assert total(seen, "nightshift_reaper_duty_failures_total", duty="dispatch") > 0
        assert not [name for name, _ in seen if name.startswith(("nightshift_job", "nightshift_p"))]
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_until(lambda: up() == 1, what="a ledger that is back")


def test_a_port_that_is_taken_is_said_in_one_sentence(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        fleet.environment["NIGHTSHIFT_METRICS_PORT"] = str(number)
        del fleet.environment["NIGHTSHIFT_RUN_DIR"]
        processes = [
            fleet.start("nightshift.worker.cli"),
            fleet.start("nightshift.producer.cli", "reaper"),
        ]
        assert [process.wait(60) for process in processes] == [2, 2]
    for path in fleet.folder.glob("*.log"):
        said = path.read_text()
        assert f"the metrics cannot be served on 127.0.0.1 port {number}" in said
        assert "Traceback" not in said
