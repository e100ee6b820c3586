"""The listener: who may read the metrics, and what is said when it cannot be served."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from nightshift.common.errors import BadInput
from nightshift.common.settings import Settings
from nightshift.common.telemetry import listener
from nightshift.producer.reaper import metrics
from nightshift.worker.telemetry.machine import served


@pytest.fixture
def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    Gauge("seen", "What a scrape sees.", registry=found).set(7)
    return found


@pytest.fixture
def serve(registry: CollectorRegistry) -> Iterator[Callable[..., int]]:
    with ExitStack() as closed:

        def served(**settings: Any) -> int:
            port = closed.enter_context(
                listener.serve(Settings(metrics_port=0, **settings), registry)
            )
            assert port is not None
            return port

        yield served


def ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_without_a_port_nobody_listens_and_no_child_counts(
    registry: CollectorRegistry, tmp_path: Path
) -> None:
    settings = Settings(run_dir=tmp_path)
    threads = threading.active_count()
    with (
        listener.serve(settings, registry) as port,
        served(settings, "p") as machine,
        metrics.served(settings) as rounds,
    ):
        assert port is None
        with rounds.round():
            assert machine.child_starts("w-1", 0) == {}
        assert machine.child_ended("w-1", "asked") is None
        machine.reported(None, 0, None, load_failed=False)
        assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_scrape_reads_the_registry_and_other_paths_are_not_there(
    serve: Callable[..., int],
) -> None:
    port = serve()
    status, said = ask(port)
    assert (status, "seen 7.0" in said) == (200, True)
    assert ask(port, "/")[0] == 404


def test_with_a_key_only_its_bearer_reads(serve: Callable[..., int]) -> None:
    port = serve(metrics_key="räp")
    assert ask(port)[0] == 401
    assert ask(port, Authorization="Bearer wrong")[0] == 401
    assert ask(port, Authorization="Basic räp".encode().decode("latin-1"))[0] == 401
    assert ask(port, Authorization="Bearer räp".encode().decode("latin-1"))[0] == 200
    assert "seen" not in ask(port, "/", Authorization="Bearer wrong")[1]


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "metrics.example"])
def test_a_host_that_others_reach_wants_a_key(registry: CollectorRegistry, host: str) -> None:
    settings = Settings(metrics_port=0, metrics_host=host)
    with (
        pytest.raises(BadInput, match="set NIGHTSHIFT_METRICS_KEY as well"),
        listener.serve(settings, registry),
    ):
        pass


def test_a_host_that_others_reach_is_served_with_a_key(serve: Callable[..., int]) -> None:
    port = serve(metrics_host="0.0.0.0", metrics_key="k")
    assert ask(port)[0] == 401
    assert ask(port, Authorization="bearer k")[0] == 200


def test_a_port_that_is_taken_is_said_in_one_sentence(registry: CollectorRegistry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(BadInput, match=f"port {port}.*NIGHTSHIFT_METRICS_PORT"),
            listener.serve(Settings(metrics_port=port), registry),
        ):
            pass


def test_a_figure_that_fails_is_an_answer_and_no_end(
    serve: Callable[..., int], registry: CollectorRegistry
) -> None:
    def fail() -> float:
        raise RuntimeError("no figure")

    Gauge("broken", "Fails.", registry=registry).set_function(fail)
    port = serve()
    assert ask(port)[0] == ask(port)[0] == 500


def test_a_run_folder_that_cannot_be_used_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for run_dir in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nope")):
        with (
            pytest.raises(BadInput, match=f"NIGHTSHIFT_RUN_DIR: {run_dir} cannot be used"),
            served(Settings(run_dir=run_dir, metrics_port=0), "p"),
        ):
            pass


def test_a_run_folder_that_is_made_is_nobody_elses(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with served(Settings(run_dir=run_dir, metrics_port=0), "p"):
        folders = [run_dir, *(path for path in run_dir.rglob("*") if path.is_dir())]
        assert [path.stat().st_mode & 0o777 for path in folders] == [0o700] * 3


def test_a_run_folder_keeps_nothing_of_supervisors_that_were_killed(tmp_path: Path) -> None:
    left = tmp_path / "metrics" / "nightshift-metrics-old"
    left.mkdir(parents=True)
    (left / "lock").touch()
    settings = Settings(run_dir=tmp_path, metrics_port=0)
    with served(settings, "p"):
        (mine,) = (tmp_path / "metrics").iterdir()
        assert mine != left
        with served(settings, "p"):  # a second machine of this folder leaves the first alone
            assert mine.exists()
    assert list((tmp_path / "metrics").iterdir()) == []
