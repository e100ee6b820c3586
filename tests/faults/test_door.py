"""The HTTP API while its processes die: no batch is lost or doubled, and no half of a file is seen."""

import json
import random
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from openai import OpenAI

from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.producer.serve.api_batches.sweep import sweep_once
from tests.support.fleet import kill_tree, logs, wait_until
from tests.support.remote import Remote
from tests.support.rig import BUILD
from tests.support.serve import Door

ENDPOINT: Final = "/v1/chat/completions"

ROWS = 12

pytestmark = pytest.mark.slow


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    """A server with the model `shout`, and nothing else yet; its processes take orders to die."""
    with Remote().running() as remote:
        engine = {"backend": "openai", "model": "m", "base_url": remote.url}
        door = Door(tmp_path / "door", database_url, redis_url, {"shout": {"engine": engine}})
        for name in ("armed", "fired"):
            (door.folder / "faults" / name).mkdir(parents=True)
        door.environment |= {
            "FAULTS": str(door.folder / "faults"),
            "PYTHONPATH": f"{BUILD}:{door.environment.get('PYTHONPATH', '')}",
        }
        try:
            door.serve()
            yield door
        finally:
            door.end()


def arm(door: Door, moment: Moment) -> None:
    """The next process that reaches the moment dies there."""
    (door.folder / "faults" / "armed" / f"{moment}.1").write_text("kill")


def fired(door: Door, moment: Moment) -> bool:
    return any((door.folder / "faults" / "fired").glob(f"{moment}.*"))


def requests(name: str, rows: int = ROWS) -> bytes:
    """A batch file whose answers tell its rows apart."""
    lines = [
        {
            "custom_id": f"{name}-{number}",
            "method": "POST",
            "url": ENDPOINT,
            "body": {
                "model": "shout",
                "messages": [{"role": "user", "content": f"{name} {number}"}],
            },
        }
        for number in range(rows)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def create(client: OpenAI, name: str) -> str:
    file = client.files.create(file=(f"{name}.jsonl", requests(name)), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",
        metadata={"name": name},
    )
    return made.id


def check(client: OpenAI, batch: Any, name: str, rows: int = ROWS) -> None:
    """Every request has its one answer."""
    assert batch.status == "completed", (batch.errors, batch)
    assert (batch.request_counts.total, batch.error_file_id) == (rows, None)
    lines = [
        json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()
    ]
    assert [line["custom_id"] for line in lines] == [f"{name}-{n}" for n in range(rows)]
    for number, line in enumerate(lines):
        content = line["response"]["body"]["choices"][0]["message"]["content"]
        assert content == f"{name} {number}".upper()


def scalar(ledger: Ledger, query: str) -> Any:
    with ledger.transaction() as connection:
        return connection.exec_driver_sql(query).scalar_one()


def let_others_in(ledger: Ledger) -> None:
    """The time of whoever holds a batch is over."""
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE holds SET until = '-infinity'")


def nothing_is_left(door: Door, ledger: Ledger) -> None:
    """No rows are reserved, and the store has the bytes of the files that are seen, and no others."""
    assert scalar(ledger, "SELECT coalesce(sum(reserved_rows), 0) FROM api_batches") == 0
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_files SET touched_at = '-infinity'")
    while sweep_once(ledger):
        pass
    with ledger.transaction() as connection:
        rows = connection.exec_driver_sql("SELECT state, uri, bytes FROM api_files").all()
    assert {row.state for row in rows} <= {"ready"}
    stored = door.folder / "store" / "default" / "files"
    sizes = {str(path): path.stat().st_size for path in stored.rglob("*") if path.is_file()}
    assert sizes == {row.uri: row.bytes for row in rows}


@pytest.mark.parametrize("moment", [Moment.SUBMITTING, Moment.DELIVERING])
def test_a_reaper_that_dies_in_the_last_moment_of_a_step_leaves_the_step_to_another(
    door: Door, ledger: Ledger, moment: Moment
) -> None:
    """Before COMMIT of the transaction that makes the job, and of the one that ends the batch."""
    client = door.client()
    arm(door, moment)
    first = door.reaper()
    door.worker()
    batch = create(client, "a")
    wait_until(lambda: first.poll() is not None, what="the death of the reaper")
    assert fired(door, moment)
    is_late = moment is Moment.DELIVERING
    seen = client.batches.retrieve(batch)
    assert seen.status == ("finalizing" if is_late else "validating")
    assert seen.output_file_id is None
    assert not list(client.files.list(purpose="batch_output"))
    assert scalar(ledger, "SELECT count(*) FROM jobs") == int(is_late)
    let_others_in(ledger)
    door.reaper()
    check(client, door.ended(client, batch), "a")
    assert scalar(ledger, "SELECT count(*) FROM jobs") == 1
    nothing_is_left(door, ledger)


def test_a_server_that_dies_while_a_file_comes_leaves_nothing_to_be_seen(
    door: Door, ledger: Ledger
) -> None:
    head = (
        b'--B\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\n'
        b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", door.port)) as client:
        client.sendall(
            b"POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n"
            b"content-type: multipart/form-data; boundary=B\r\n\r\n" + head + b"x" * 3_000_000
        )
        wait_until(
            lambda: scalar(ledger, "SELECT count(*) FROM api_files") == 1, what="the first bytes"
        )
        kill_tree(door.processes[0])
    door.serve()
    assert not list(door.client().files.list())
    nothing_is_left(door, ledger)
    assert scalar(ledger, "SELECT count(*) FROM api_files") == 0


def test_a_server_that_dies_once_the_bytes_are_there_has_taken_no_file(
    door: Door, ledger: Ledger
) -> None:
    """The client sends the file again by itself, and finds one."""
    arm(door, Moment.WRITING)
    revived = threading.Thread(target=_revive, args=(door,))
    revived.start()
    client = door.client(max_retries=10)
    file = client.files.create(file=("a.jsonl", requests("a")), purpose="batch")
    revived.join()
    assert fired(door, Moment.WRITING)
    assert [each.id for each in client.files.list()] == [file.id]
    assert client.files.content(file.id).content == requests("a")
    assert scalar(ledger, "SELECT count(*) FROM api_files") == 2
    nothing_is_left(door, ledger)


def _revive(door: Door) -> None:
    door.processes[0].wait(100)
    door.serve()


class Night:
    """Processes behind a server die one after the other, and come back."""

    def __init__(self, door: Door, ledger: Ledger, chance: random.Random) -> None:
        self.door, self.ledger, self.chance = door, ledger, chance
        self.killed: Counter[str] = Counter()
        self.running: dict[str, list[subprocess.Popen[bytes]]] = {
            "serve": [door.processes[0]],
            "reaper": [door.reaper(), door.reaper()],
            "worker": [door.worker(), door.worker()],
        }

    def kill_one(self) -> None:
        """SIGKILL for one of the processes, another in its place, and what it held is free."""
        (kind,) = self.chance.choices(list(self.running), weights=[3, 3, 2])
        place = self.chance.randrange(len(self.running[kind]))
        kill_tree(self.running[kind][place])
        self.killed[kind] += 1
        start = {"serve": self.door.serve, "reaper": self.door.reaper, "worker": self.door.worker}
        self.running[kind][place] = start[kind]()
        let_others_in(self.ledger)


def test_no_batch_is_lost_or_doubled_while_servers_reapers_and_workers_die(
    door: Door, ledger: Ledger, chance: random.Random
) -> None:
    night = Night(door, ledger, chance)
    made: dict[str, str] = {}

    def clients() -> None:
        client = door.client(max_retries=30)
        for number in range(15):
            made[f"n{number}"] = create(client, f"n{number}")
            time.sleep(chance.uniform(0, 1))

    creating = threading.Thread(target=clients)
    creating.start()
    while creating.is_alive() or sum(night.killed.values()) < 15:
        time.sleep(chance.uniform(0.2, 2))
        night.kill_one()
    creating.join()
    client = door.client(max_retries=10)
    assert len(made) == len(set(made.values())) == 15, logs(door.folder)
    for name, batch in made.items():
        wait_until(partial(_is_over, client, ledger, batch), 300, f"the end of {name}")
        check(client, client.batches.retrieve(batch), name)
    assert scalar(ledger, "SELECT count(*) FROM api_batches") == len(made)
    assert scalar(ledger, "SELECT count(*) FROM jobs") == len(made)
    nothing_is_left(door, ledger)


def _is_over(client: OpenAI, ledger: Ledger, batch: str) -> bool:
    let_others_in(ledger)
    time.sleep(1)
    return client.batches.retrieve(batch).status in ("completed", "failed", "expired", "cancelled")
