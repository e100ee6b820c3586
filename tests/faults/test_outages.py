"""An outage that a worker waits for is said within ten seconds wherever somebody looks, and so is its end."""

import json
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.failpoints import Moment
from nightshift.common.ledger.fleet.outages import LAPSE_SECONDS
from tests.support.fleet import Fleet, function_spec, logs, output_ids, wait_until, write_rows
from tests.support.rig import BUILD
from tests.support.serve import CLIENT_SECONDS, Door

SOON_SECONDS = 10.0
"""What is promised, by the clock of Postgres: a command of a test on a busy machine may take as long."""

FULL_BYTES = 128 * 1024
"""More than what else a child writes, less than a part with its blobs."""

GATED = """
import time
from pathlib import Path

def gated(rows):
    (Path(__file__).parent / "began").touch()
    while not (Path(__file__).parent / "open").exists():
        time.sleep(0.02)
    return [{"loud": row["text"].upper()} for row in rows]
"""

AS_SHIPPED = {"NIGHTSHIFT_LEASE_SECONDS": "30", "NIGHTSHIFT_HEARTBEAT_SECONDS": "10"}
"""The settings that nobody changed: the promise is no matter of short heartbeats."""


def blobs(folder: Path, rows: int) -> list[str]:
    """Rows of 32 kB that nothing makes smaller."""
    ids = write_rows(folder, [("a.parquet", rows)])
    table = pq.read_table(folder / "a.parquet")
    random = pa.array([os.urandom(32_000) for _ in ids])
    pq.write_table(table.append_column("blob", random), folder / "a.parquet")
    return ids


def spec_of(fleet: Fleet, name: str) -> tuple[Path, list[str]]:
    (fleet.folder / "rules.py").write_text(GATED)
    ids = blobs(fleet.folder / f"in-{name}", 20)
    made = function_spec(
        name,
        fleet.folder / f"in-{name}",
        fleet.folder / f"out-{name}",
        engine={"backend": "function", "callable": "rules:gated"},
        batch={"rows": 10},
    )
    made["output"]["columns"] = ["blob"]
    return fleet.spec(made), ids


def ready_child(url: str) -> int:
    """The process of the one worker child."""
    with psycopg.connect(url) as connection:
        [(pid,)] = connection.execute("SELECT pid FROM workers WHERE state = 'ready'")
    return int(pid)


def said_at(doors: dict[str, Callable[[], Any]]) -> None:
    """Every door says it."""
    for name, look in doors.items():
        wait_until(look, what=f"a sentence of {name}")


def told_after(url: str) -> float:
    """How long after its beginning an outage was told, in seconds, once it is."""
    query = """
        SELECT extract(epoch FROM until - make_interval(secs => %s) - since)::float8 FROM outages
    """
    with psycopg.connect(url, autocommit=True) as connection:
        look = lambda: connection.execute(query, [LAPSE_SECONDS]).fetchone()  # noqa: E731
        return float(wait_until(look, what="an outage in the ledger")[0])


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    engine = {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    found = Door(tmp_path / "door", database_url, redis_url, {"m": {"engine": engine}})
    found.environment |= AS_SHIPPED | {
        "NIGHTSHIFT_ALLOWED_MODULES": "rules",
        "NIGHTSHIFT_CALLABLE_PATHS": str(found.folder),
    }
    yield found
    found.end()


@pytest.mark.slow
def test_a_full_disk_is_said_by_every_door_and_no_more_once_there_is_room(
    door: Door, database_url: str
) -> None:
    """Only a log did."""
    path, ids = spec_of(door, "disk")
    door.serve()
    assert door.command("submit", str(path)).returncode == 0
    door.reaper()
    door.worker()
    wait_until((door.folder / "began").exists, what="a call of the function")
    door.start("nightshift.producer.cli", "watch", "disk")
    watched = door.folder / f"nightshift.producer.cli.{len(door.processes) - 1}.log"
    pid = ready_child(database_url)
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, limits[1]))
    (door.folder / "open").touch()
    assert told_after(database_url) < SOON_SECONDS
    at = f"http://127.0.0.1:{door.port}"
    said = re.compile(
        r"1 worker has waited \d+ s for the storage of its files, on \S+: .*the file is larger"
    )

    def says(text: str) -> bool:
        return said.search(" ".join(text.split())) is not None

    doors = {
        "explain": lambda: says(door.command("explain", "disk").stdout),
        "status": lambda: says(door.command("status", "disk").stdout),
        "status of all": lambda: says(door.command("status").stdout),
        "jobs": lambda: says(door.command("jobs").stdout),
        "workers": lambda: says(door.command("workers").stdout),
        "top": lambda: says(door.command("top").stdout),
        "status --json": lambda: says(json.dumps(door.status("disk")["outages"])),
        "doctor": lambda: says((done := door.command("doctor")).stdout) and done.returncode == 1,
        "watch": lambda: says(watched.read_text()),
        "the API": lambda: says(httpx.get(f"{at}/api/jobs/1", timeout=CLIENT_SECONDS).text),
        "the API's explain": lambda: says(
            httpx.get(f"{at}/api/jobs/1/explain", timeout=CLIENT_SECONDS).text
        ),
        "the page of the job": lambda: says(httpx.get(f"{at}/jobs/1", timeout=CLIENT_SECONDS).text),
        "the page of the fleet": lambda: says(
            httpx.get(f"{at}/fleet", timeout=CLIENT_SECONDS).text
        ),
    }
    said_at(doors)
    stands = door.status("disk")
    assert stands["stalled"]
    assert stands["rows_per_second"] is stands["eta_seconds"] is None
    line = [line for line in watched.read_text().splitlines() if says(line)][-1]
    assert "rows/s" not in line, "no rate of before stands beside it"
    assert "to go" not in line

    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    wait_until(lambda: door.status("disk")["status"] == "completed", what="the end of the job")
    assert output_ids(door.folder / "out-disk") == ids
    assert door.status("disk")["outages"] == []
    assert "wait" not in door.command("explain", "disk").stdout


def frozen_postgres(run: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The Postgres of a run with its backends, all of them stopped."""
    (server,) = [
        each
        for each in psutil.Process(run.pid).children(recursive=True)
        if each.name() == "postgres" and each.parent().name() != "postgres"
    ]
    members = [server, *server.children(recursive=True)]
    for each in members:
        each.send_signal(signal.SIGSTOP)
    return members


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["in a transaction", "before the first look", "between looks"])
def test_a_run_says_in_its_terminal_that_postgres_is_frozen_whenever_it_freezes(
    tmp_path: Path, stage: str
) -> None:
    faults = tmp_path / "faults"
    for name in ("armed", "fired"):
        (faults / name).mkdir(parents=True)
    path = os.pathsep.join(filter(None, [str(BUILD), os.environ.get("PYTHONPATH")]))
    fleet = Fleet(tmp_path, FAULTS=str(faults), PYTHONPATH=path, **AS_SHIPPED)
    spec, ids = spec_of(fleet, "disk")
    moment = Moment.SUBMITTING if stage == "in a transaction" else Moment.LOOKING
    order = faults / "armed" / f"{moment}.1"
    if stage != "between looks":
        order.write_text("hold")
    try:
        running = fleet.start("nightshift.producer.cli", "run", str(spec))
        log = tmp_path / "nightshift.producer.cli.0.log"
        if stage == "between looks":
            wait_until((tmp_path / "began").exists, what="a call of the function")
            order.write_text("hold")
        wait_until(lambda: list((faults / "fired").iterdir()), what=f"the moment {stage}")
        members = frozen_postgres(running)
        (faults / "go").touch()
        wait_until(lambda: "is silent" in log.read_text(), what="a line about Postgres")
        assert "for 0 s" not in log.read_text()
        for each in members:
            each.send_signal(signal.SIGCONT)
        (tmp_path / "open").touch()
        ended = running.wait(200)
        if (
            stage == "in a transaction" and ended != 0
        ):  # it may have been given up; the same command continues
            assert "silent" in log.read_text()
            ended = fleet.command("run", str(spec)).returncode
        assert ended == 0, logs(tmp_path)
        assert output_ids(tmp_path / "out-disk") == ids
    finally:
        fleet.end()


@pytest.mark.slow
def test_a_run_waits_for_its_postgres_that_freezes_while_it_starts_and_reports_it(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, **AS_SHIPPED)
    spec, ids = spec_of(fleet, "disk")
    (tmp_path / "open").touch()
    ready = tmp_path / ".nightshift" / "postgres" / "data" / "postmaster.pid"
    try:
        running = fleet.start("nightshift.producer.cli", "run", str(spec))
        log = tmp_path / "nightshift.producer.cli.0.log"
        wait_until(lambda: ready.exists() and "ready" in ready.read_text(), what="a Postgres")
        members = frozen_postgres(running)
        # Longer than a connection and the end of a server may take.
        wait_until(lambda: log.read_text().count("this command waits") > 1, what="two lines")
        for each in members:
            each.send_signal(signal.SIGCONT)
        assert running.wait(120) == 0, logs(tmp_path)
        assert output_ids(tmp_path / "out-disk") == ids
    finally:
        fleet.end()


@pytest.mark.slow
def test_a_run_says_in_its_terminal_that_the_disk_is_full_and_that_postgres_is_frozen(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, **AS_SHIPPED)
    path, ids = spec_of(fleet, "disk")
    try:
        running = fleet.start("nightshift.producer.cli", "run", str(path))
        log = tmp_path / "nightshift.producer.cli.0.log"
        wait_until((tmp_path / "began").exists, what="a call of the function")
        backends = frozen_postgres(running)
        wait_until(lambda: "is silent" in log.read_text(), what="a line about Postgres")
        wait_until(
            lambda: "ledger_silent" in (tmp_path / ".nightshift" / "worker.log").read_text(),
            what="a line of the worker about Postgres",
        )
        for looked in (["status"], ["explain", "disk"], ["watch", "disk"], ["doctor"]):
            said = fleet.command(*looked)
            told = " ".join((said.stdout + said.stderr).split())
            assert said.returncode != 0, told
            assert re.search(r"Postgres at 127\.0\.0\.1:\d+/nightshift cannot be reached", told)
            assert "another `nightshift run`" not in told
            assert "NIGHTSHIFT_DATABASE_URL" not in told
        for each in backends:
            each.send_signal(signal.SIGCONT)

        url = (tmp_path / ".nightshift" / "database_url").read_text()
        pid = ready_child(url)
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, limits[1]))
        (tmp_path / "open").touch()
        said_at({"run": lambda: "s for the storage of its files" in log.read_text()})
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        assert running.wait(120) == 0, logs(tmp_path)
        assert output_ids(tmp_path / "out-disk") == ids
    finally:
        fleet.end()
