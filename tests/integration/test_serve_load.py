"""A server of the HTTP API with many clients, slow clients, and files larger than its memory."""

import asyncio
import hashlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support import warm
from tests.support.fleet import wait_until
from tests.support.serve import CLIENT_SECONDS, Door

pytestmark = pytest.mark.slow

MOST_BYTES = 150_000_000
"""Memory that a server may take while files of any size go through it."""

SLOW = 60
"""Slow clients: more than a server has threads for requests, or connections to Postgres."""

HEAD = (
    b'--B\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--B\r\ncontent-disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
)
TAIL = b"\r\n--B--\r\n"

PIECE = os.urandom(1_000_000)


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    """A server without a fleet."""
    door = Door(tmp_path / "door", database_url, redis_url, {})
    try:
        yield door
    finally:
        door.end()


def healthy(door: Door) -> OpenAI:
    """A client that tries nothing twice."""
    return door.client(max_retries=0)


def slow_client(door: Door) -> HTTPConnection:
    """A connection that takes little at a time."""
    connection = HTTPConnection("127.0.0.1", door.port)
    connection.sock = socket.socket()
    connection.sock.settimeout(CLIENT_SECONDS)
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sock.connect(("127.0.0.1", door.port))
    return connection


def begin_upload(connection: HTTPConnection, size: int) -> None:
    """Sends the head of an upload of a file of so many bytes."""
    connection.putrequest("POST", "/v1/files")
    connection.putheader("content-type", "multipart/form-data; boundary=B")
    connection.putheader("content-length", str(len(HEAD) + size + len(TAIL)))
    connection.endheaders(HEAD)


def file_ids(client: OpenAI) -> set[str]:
    """Every file that is seen."""
    return {each.id for each in client.files.list()}


def stored(door: Door) -> list[Path]:
    """Files in the store."""
    return [path for path in (door.folder / "store").rglob("*.jsonl") if path.is_file()]


def works(client: OpenAI) -> str:
    """Everything that a client does with a file gets its right answer; the id of the file."""
    data = os.urandom(100_000)
    file = client.files.create(file=("rows.jsonl", data), purpose="batch")
    assert client.files.content(file.id).content == data
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert client.batches.retrieve(batch.id).input_file_id == file.id
    assert file.id in file_ids(client)
    return file.id


def peak_bytes(process: Any) -> int:
    """The most memory that a process has held; VmHWM is in KiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_three_hundred_clients_at_once_get_right_answers_and_lose_nothing(door: Door) -> None:
    door.serve()
    client = healthy(door)
    file_id = client.files.create(file=("rows.jsonl", b"{}\n"), purpose="batch").id

    async def one(number: int) -> str:
        """Each with connections of its own; an answer that is no success is an error."""
        async with AsyncOpenAI(
            base_url=door.url, api_key="none", max_retries=0, timeout=CLIENT_SECONDS
        ) as own:
            assert file_id in {each.id async for each in own.files.list()}
            made = await own.batches.create(
                input_file_id=file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"number": str(number)},
            )
            seen = await own.batches.retrieve(made.id)
            assert (seen.id, seen.metadata) == (made.id, {"number": str(number)})
            return made.id

    async def everybody() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(300)))

    made = asyncio.run(everybody())
    listed = [(each.id, (each.metadata or {})["number"]) for each in client.batches.list(limit=100)]
    assert sorted(listed) == sorted((id, str(number)) for number, id in enumerate(made))


def test_slow_readers_hold_up_nobody(door: Door) -> None:
    process = door.serve()
    client = healthy(door)
    data = PIECE * 32
    file_id = client.files.create(file=("rows.jsonl", data), purpose="batch").id
    with ExitStack() as stack:
        answers = []
        for _ in range(SLOW):
            connection = stack.enter_context(closing(slow_client(door)))
            connection.request("GET", f"/v1/files/{file_id}/content")
            answers.append(connection.getresponse())
        taken = [answer.read(1000) for answer in answers]
        for _ in range(5):
            works(client)
            taken = [got + answer.read(1000) for got, answer in zip(taken, answers, strict=True)]
        assert set(taken) == {data[:6000]}
        assert psutil.Process(process.pid).num_threads() < SLOW
        assert answers[0].read() == data[6000:]


def test_slow_uploads_hold_up_nobody_and_one_that_stops_leaves_nothing(door: Door) -> None:
    door.serve()
    client = healthy(door)
    sent = b"a line\n" * 1000
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(slow_client(door))) for _ in range(SLOW)]
        for connection in slow:
            begin_upload(connection, len(sent))
        seen = set()
        for start in range(0, 5000, 1000):
            for connection in slow:
                connection.send(sent[start : start + 1000])
            seen.add(works(client))
        assert file_ids(client) == seen
        assert len(stored(door)) == len(seen) + SLOW
        stay, leave = slow[: SLOW // 2], slow[SLOW // 2 :]
        for connection in leave:
            connection.close()
        for connection in stay:
            connection.send(sent[5000:] + TAIL)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            seen.add(json.loads(answer.read())["id"])
    assert file_ids(client) == seen
    wait_until(lambda: len(stored(door)) == len(seen), what="the end of the bytes that stopped")
    assert len(seen) == 5 + len(stay)
    assert all(path.read_bytes() == sent for path in stored(door) if path.stat().st_size == 7000)


def test_an_upload_is_never_seen_when_its_server_is_killed(door: Door) -> None:
    process = door.serve()
    with closing(slow_client(door)) as connection:
        begin_upload(connection, 10_000_000)
        connection.send(PIECE * 5)
        wait_until(lambda: any(each.stat().st_size for each in stored(door)), what="some bytes")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    door.serve()
    client = healthy(door)
    assert file_ids(client) == set()
    works(client)


def test_a_gigabyte_goes_up_and_down_in_little_memory(door: Door) -> None:
    warm.use(())  # a process that is forked from a warm one has the memory of all that one imported
    process = door.serve()
    size = 1000 * len(PIECE)
    wanted = hashlib.blake2b()
    with closing(HTTPConnection("127.0.0.1", door.port, timeout=200)) as connection:
        begin_upload(connection, size)
        for _ in range(1000):
            connection.send(PIECE)
            wanted.update(PIECE)
        connection.send(TAIL)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        made = json.loads(answer.read())
        assert made["bytes"] == size
        got = hashlib.blake2b()
        connection.request("GET", f"/v1/files/{made['id']}/content")
        answer = connection.getresponse()
        while piece := answer.read(1_000_000):
            got.update(piece)
    assert got.digest() == wanted.digest()
    assert peak_bytes(process) < MOST_BYTES
