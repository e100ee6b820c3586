"""`nightshift serve` without a fleet: a whole one on this machine, as `nightshift run` has."""

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import redis
import yaml
from rich.console import Console
from sqlalchemy import text
from starlette.testclient import TestClient

from nightshift.common.errors import Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings, load_settings
from nightshift.producer.local import restarts
from nightshift.producer.local.fleet import LocalFleet
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve import model_table
from nightshift.producer.serve.health import Health
from nightshift.producer.serve.one_machine import for_table, serve_alone
from tests.support import homes
from tests.support.fleet import is_alive, logs, tree, wait_until
from tests.support.remote import Remote
from tests.support.serve import Door

ENGINE = {"backend": "vllm", "model": "./model", "args": {"trust_remote_code": True}}


@pytest.fixture
def remote() -> Iterator[Remote]:
    """The server that answers for the model."""
    with Remote().running() as server:
        yield server


@pytest.mark.slow
def test_a_batch_runs_where_there_is_no_fleet_and_is_there_after_a_second_start(
    tmp_path: Path, remote: Remote
) -> None:
    engine = {"backend": "openai", "model": "m", "base_url": remote.url, "args": {"user": "me"}}
    door = Door(tmp_path / "door", "", "", {"shout": {"engine": engine}})
    for name in ("DATABASE_URL", "BROKER_URL", "SERVE_STORE"):
        del door.environment[f"NIGHTSHIFT_{name}"]
    body = {"model": "shout", "messages": [{"role": "user", "content": "hi"}]}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    try:
        first = door.serve()
        client = door.client()
        file = client.files.create(file=("a.jsonl", json.dumps(row).encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        ended = door.ended(client, batch.id)
        assert ended.request_counts.completed == 1, logs(door.folder)
        members = tree(first)
        first.send_signal(signal.SIGTERM)
        assert first.wait(100) == 0
        wait_until(lambda: not any(map(is_alive, members)), what="the end of every process")
        door.serve()
        again = door.client().batches.retrieve(batch.id)
        (line,) = door.client().files.content(again.output_file_id).text.splitlines()
        assert "HI" in line
    finally:
        door.end()


ENDS = 8
"""More ends of the worker than `run` would take in a row."""


def test_the_door_stays_open_however_often_its_worker_ends_and_says_so_meanwhile(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once shut for good at the sixth end of its worker in its whole life."""
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.001)
    table = tmp_path / "models.yaml"
    engine = {"backend": "openai", "model": "m", "base_url": remote.url}
    table.write_text(yaml.safe_dump({"models": {"shout": {"engine": engine}}}))
    home = tmp_path / "home"
    homes.furnish(home)
    seen: list[str] = []

    def serve(ledger: Ledger, settings: Settings, fleet: LocalFleet) -> None:
        served = TestClient(serve_app.build(ledger, settings, health=Health(fleet.troubles)))
        said = f"the worker ended {ENDS} times in a row"

        def ends_again() -> bool:
            assert not fleet.is_broken()
            if said in served.get("/healthz").text:
                return True
            for each in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if "nightshift.worker.cli" in each.cmdline():
                        each.kill()
            return False

        wait_until(ends_again, what=said)
        answer = served.get("/healthz")
        assert answer.status_code == 200
        seen.extend(answer.text.splitlines())
        monkeypatch.setattr(restarts, "LIVED_SECONDS", 0.0)
        wait_until(
            lambda: not fleet.is_broken() and not fleet.troubles(), what="a worker that lives"
        )
        assert served.get("/healthz").text == "ok\n"

    settings = load_settings(serve_models=table, home=home)
    serve_alone(settings, Console(quiet=True), serve, 4)
    assert seen[0] == "ok"
    assert "last with exit code -9" in seen[1]
    assert str(tmp_path) not in seen[1], "whoever asks brings no key"


def test_a_killed_postgres_and_redis_start_again_where_they_were_and_the_door_stays_open(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One end of either once shut the door."""
    monkeypatch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.001)
    table = tmp_path / "models.yaml"
    engine = {"backend": "openai", "model": "m", "base_url": remote.url}
    table.write_text(yaml.safe_dump({"models": {"shout": {"engine": engine}}}))
    home = tmp_path / "home"
    homes.furnish(home)
    seen: set[str] = set()

    def follow(ledger: Ledger, client: redis.Redis, fleet: LocalFleet) -> None:
        def answers() -> bool:
            assert not fleet.is_broken()
            seen.update(fleet.troubles())
            with suppress(Retryable, redis.RedisError), ledger.transaction() as connection:
                return bool(
                    client.ping() and not connection.scalar(text("SELECT count(*) FROM jobs"))
                )
            return False

        wait_until(answers, what="both servers")
        data = home / "postgres" / "data" / "postmaster.pid"
        for name, pid in {
            "PostgreSQL": lambda: int(data.read_text().split()[0]),
            "Redis": lambda: int(client.info()["process_id"]),
        }.items():
            for ended in ("ended", "ended 2 times in a row, last"):
                # Of this fleet alone: others of this process serve the whole suite.
                psutil.Process(pid()).kill()
                said = f"the {name} {ended} with exit code -9; it runs again"
                wait_until(lambda said=said: answers() and said in seen, what=said)

    def serve(ledger: Ledger, settings: Settings, fleet: LocalFleet) -> None:
        with redis.Redis.from_url(settings.broker_url or "") as client:
            follow(ledger, client, fleet)

    serve_alone(load_settings(serve_models=table, home=home), Console(quiet=True), serve, 4)


def test_a_model_beside_the_table_is_found_and_its_arguments_are_the_operators(
    tmp_path: Path,
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {"m": {"pool": "big", "engine": ENGINE}}}))
    table = model_table.load(path)
    assert table.models["m"].engine.model_dump()["model"] == str(tmp_path / "model")
    given: Settings = load_settings(serve_models=path)
    found = for_table(table, given)
    assert found.allowed_engine_args is not None
    assert any(each.startswith("trust_remote_code") for each in found.allowed_engine_args)
    assert found.serve_store == str(given.home.absolute() / "files")
