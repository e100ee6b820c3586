"""The pieces of a fleet, run as the containers of the images would be; see containers.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml

from tests.support.containers import BIN, HERE, USER, Containers
from tests.support.fake_hub import FakeHub
from tests.support.fleet import is_alive, kill_tree, tree, wait_until

REVIEWS = HERE / "examples" / "reviews"
ROWS = 300
RUNS = ("reaper-1", "reaper-2", "worker")

COMPILED = (
    "nightshift.worker.celery_app",
    "nightshift.worker.engines.vllm.engine",
    "vllm.v1.worker.cpu_worker",
)

pytestmark = pytest.mark.timeout(600)


class Pieces:
    """Containers of one deployment; each has a run folder of its own, all share data and cache."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, hub: FakeHub) -> None:
        self.containers = Containers(folder, *RUNS, "cache", "data")
        self.logs = folder / "logs"
        self.logs.mkdir()
        self._started: list[subprocess.Popen[str]] = []
        cache = self.containers.inside("cache")
        self._environment = {
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "HF_HOME": str(cache / "huggingface"),
            "HF_ENDPOINT": hub.address,
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "NIGHTSHIFT_DATABASE_URL": database_url,
            "NIGHTSHIFT_BROKER_URL": redis_url,
            "NIGHTSHIFT_ALLOWED_ROOTS": str(self.containers.inside("data")),
            "NIGHTSHIFT_LOG_FORMAT": "json",
            # What the probes wait for is counted in these.
            "NIGHTSHIFT_ANSWER_SECONDS": "2",
            "NIGHTSHIFT_DRAIN_SECONDS": "10",
        }

    def environment(self, run: str) -> dict[str, str]:
        return {**self._environment, "NIGHTSHIFT_RUN_DIR": str(self.containers.inside(run))}

    def start(self, run: str, *command: str) -> subprocess.Popen[str]:
        """A container's main process, by the command line of its image."""
        log = self.logs / f"{run}.log"
        process = self.containers.start(list(command), self.environment(run), log)
        self._started.append(process)
        return process

    def run(self, run: str, *command: str) -> subprocess.CompletedProcess[str]:
        """What is run inside a container, such as a probe, or in one of its own."""
        return self.containers.run(list(command), self.environment(run))

    def probe(self, run: str, *command: str) -> int:
        return self.run(run, *command).returncode

    def wait_for(self, sentence: str, probe: str, what: str) -> None:
        """Asks the worker's probe, as often as a container's is asked, until it says this."""
        deadline = time.monotonic() + 300
        while True:
            done = self.run("worker", "nightshift-worker", probe)
            if sentence in done.stdout + done.stderr:
                return
            assert time.monotonic() < deadline, f"no {what}: {done.stderr}\n{self.said()}"
            time.sleep(1)

    def said(self) -> str:
        """The logs, for a failing assertion."""
        return "\n".join(f"== {log}\n{log.read_text()[-6000:]}" for log in self.logs.iterdir())

    def end(self) -> None:
        for process in self._started:
            kill_tree(process)  # type: ignore[arg-type]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not under pytest's own, which only its user may enter."""
    made = Path(tempfile.mkdtemp(prefix="nightshift-pieces-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def pieces(folder: Path, fresh_database: Callable[..., str], redis_url: str) -> Iterator[Pieces]:
    with FakeHub(REVIEWS / "model", "acme/reviews") as hub:
        found = Pieces(folder, fresh_database(migrated=False), redis_url, hub)
        found.hub = hub  # type: ignore[attr-defined]
        yield found
        found.end()


def reviews_spec(containers: Containers) -> Path:
    """The reviews example with its data on a volume and its model on a hub."""
    data = containers.outside("data")
    made = ["--split", "test", "--rows", str(ROWS), "--out", data / "test.parquet"]
    subprocess.run([sys.executable, REVIEWS / "make_reviews.py", *made], check=True)
    spec = yaml.safe_load((REVIEWS / "job.yaml").read_text())
    inside = containers.inside("data")
    spec["input"]["uri"] = str(inside / "test.parquet")
    spec["output"]["uri"] = str(inside / "out")
    spec["engine"]["model"] = "acme/reviews"
    (data / "job.yaml").write_text(yaml.safe_dump(spec))
    return inside / "job.yaml"


def the_programs_can_be_run_and_not_changed(pieces: Pieces) -> None:
    containers = pieces.containers
    done = pieces.run("worker", "nightshift", "--help")
    assert done.returncode == 0, (
        f"user {USER} cannot run {BIN}/nightshift, so nothing can be said of containers here: put "
        f"the repository and its Python where every user may read them: {done.stderr}"
    )
    assert pieces.run("worker", "id", "-u").stdout.strip() == str(
        USER if containers.is_other else os.getuid()
    )
    if not containers.is_other:
        return
    for place in (HERE, BIN, Path("/"), Path("/usr/bin"), Path("/var/tmp")):
        writes = pieces.run("worker", "touch", str(place / "nightshift-was-here"))
        if containers.has_mounts or place != Path("/var/tmp"):
            assert writes.returncode == 1, f"{place} can be written"


def test_the_reviews_are_done_by_the_pieces_as_containers_run_them(pieces: Pieces) -> None:
    containers = pieces.containers
    the_programs_can_be_run_and_not_changed(pieces)
    containers.compile("vllm", *COMPILED)
    spec = reviews_spec(containers)

    assert pieces.probe("reaper-1", "nightshift", "alive") == 1
    done = pieces.run("reaper-1", "nightshift", "migrate")
    assert done.returncode == 0, done.stderr
    reapers = [pieces.start(run, "nightshift", "reaper") for run in ("reaper-1", "reaper-2")]
    done = pieces.run("reaper-1", "nightshift", "submit", str(spec))
    assert done.returncode == 0, done.stderr

    assert pieces.probe("worker", "nightshift-worker", "started") == 1
    worker = pieces.start("worker", "nightshift-worker", "--pool", "default")
    pieces.wait_for("is loading", "started", what="a child that loads")
    for run in ("reaper-1", "reaper-2"):
        assert pieces.probe(run, "nightshift", "alive") == 0, pieces.said()
    assert pieces.probe("worker", "nightshift-worker", "alive") == 0, pieces.said()

    # The engine loads on without its supervisor.
    worker.send_signal(signal.SIGSTOP)
    pieces.wait_for("stood still", "alive", what="a probe that sees the supervisor stand still")
    worker.send_signal(signal.SIGCONT)
    pieces.wait_for("the supervisor looks", "alive", what="a probe that sees it go on")
    pieces.wait_for("1 slot has a warm engine", "started", what="a warm engine")
    done = pieces.run("reaper-1", "nightshift", "wait", "review-sentiment")
    assert done.returncode == 0, done.stdout + done.stderr + pieces.said()
    assert pieces.probe("worker", "nightshift-worker", "alive") == 0
    checked = pieces.run("reaper-1", "nightshift", "verify", "review-sentiment")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    the_answers_are_right(containers.outside("data") / "out")

    hub: Any = pieces.hub  # type: ignore[attr-defined]
    assert hub.gets["model.safetensors"] == 1, (hub.gets, hub.peeks)
    said = [
        json.loads(line)
        for line in (pieces.logs / "worker.log").read_text().splitlines()
        if line.startswith("{")
    ]
    assert [line["model"] for line in said if line["event"] == "model_fetched"] == ["acme/reviews"]

    members = tree(worker)  # type: ignore[arg-type]
    done = pieces.run("worker", "nightshift-worker", "drain")
    assert done.returncode == 0, done.stderr + pieces.said()
    assert worker.wait(200) == 0, pieces.said()
    assert pieces.probe("worker", "nightshift-worker", "drain") == 0, "there is nothing left to do"
    wait_until(lambda: not any(map(is_alive, members)), what="the end of every process")
    for reaper in reapers:
        reaper.terminate()
    assert [reaper.wait(60) for reaper in reapers] == [0, 0]
    assert pieces.probe("reaper-1", "nightshift", "alive") == 1


def the_answers_are_right(output: Path) -> None:
    rows = ds.dataset(output).to_table().to_pylist()
    assert sorted(row["row_index"] for row in rows) == list(range(ROWS))
    assert sum(row["output"] == row["label"] for row in rows) >= 0.95 * ROWS
