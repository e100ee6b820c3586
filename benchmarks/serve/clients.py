"""Clients of `make bench-serve`: many that ask at once, and one that sends or takes a large file."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import chain
from typing import Any

import aiohttp
import numpy as np

BLOCK = (
    b'{"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n' * 12_800
)
"""About 1 MB, which a client sends again and again."""

BOUNDARY = "nightshift"

TAKE_BYTES = 2**20

LIMIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server on loopback, by its port, and the key that opens it."""

    name: str
    port: int
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What each request has."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def connection(self) -> Iterator[HTTPConnection]:
        """A connection of its own."""
        made = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_SECONDS)
        try:
            yield made
        finally:
            made.close()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """What it answers to one request; an error for anything but 200."""
        with self.connection() as connection:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, self.headers)
            answer = connection.getresponse()
            came = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{method} {path} answered {answer.status}: {came[:300]!r}")
            return json.loads(came)

    def is_up(self) -> bool:
        """Whether it answers."""
        with self.connection() as connection:
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
            except OSError:
                return False


@dataclass(slots=True)
class Asked:
    """Requests of many clients: how many in how many seconds, and the milliseconds of each."""

    seconds: float = 0.0
    milliseconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.milliseconds) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds that such a percentage of the requests took at most."""
        return float(np.percentile(self.milliseconds, share))


def many(
    server: Server, method: str, path: str, clients: int, seconds: float, body: Any = None
) -> Asked:
    """So many clients, each with a connection of its own, ask again and again for so long."""
    return asyncio.run(_many(server, method, path, clients, seconds, body))


async def _many(
    server: Server, method: str, path: str, clients: int, seconds: float, body: Any
) -> Asked:
    found = Asked()
    async with _session(server, clients) as session:

        async def ask() -> None:
            async with session.request(method, path, json=body) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{method} {path} answered {answer.status}: {text[:300]!r}")

        async def client() -> None:
            while time.perf_counter() < ends:
                began = time.perf_counter()
                await ask()
                found.milliseconds.append(1000 * (time.perf_counter() - began))

        await asyncio.gather(*(ask() for _ in range(clients)))  # every client is connected
        began = time.perf_counter()
        ends = began + seconds
        await asyncio.gather(*(client() for _ in range(clients)))
        found.seconds = time.perf_counter() - began
    return found


@asynccontextmanager
async def _session(server: Server, clients: int) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        server.url,
        headers=server.headers,
        connector=aiohttp.TCPConnector(limit=clients),
        timeout=aiohttp.ClientTimeout(total=LIMIT_SECONDS),
    ) as session:
        yield session


def blocks(size: int) -> Iterator[bytes]:
    """So many bytes of lines, a block at a time."""
    for start in range(0, size, len(BLOCK)):
        yield BLOCK[: size - start]


def send(
    server: Server, pieces: Iterable[bytes], size: int, *, as_form: bool = True
) -> tuple[str, float]:
    """Uploads pieces of `size` bytes together, as the form of the API or as they are; the id of the
    file, and seconds.
    """
    head, tail, kind = b"", b"", "application/octet-stream"
    if as_form:
        head = (
            f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        ).encode()
        tail = f"\r\n--{BOUNDARY}--\r\n".encode()
        kind = f"multipart/form-data; boundary={BOUNDARY}"
    sizes = {"content-length": str(len(head) + size + len(tail))}
    headers = {**server.headers, "content-type": kind, **sizes}
    with server.connection() as connection:
        began = time.perf_counter()
        connection.request("POST", "/v1/files", chain([head], pieces, [tail]), headers)
        answer = connection.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"an upload was answered {answer.status}: {text[:300]!r}")
        return json.loads(text)["id"], seconds


def take(server: Server, path: str) -> tuple[int, int, float]:
    """Downloads and throws away: bytes, lines, seconds."""
    buffer = bytearray(TAKE_BYTES)
    taken = lines = 0
    with server.connection() as connection:
        began = time.perf_counter()
        connection.request("GET", path, headers=server.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
        while count := answer.readinto(buffer):
            taken += count
            lines += buffer.count(b"\n", 0, count)
        return taken, lines, time.perf_counter() - began
