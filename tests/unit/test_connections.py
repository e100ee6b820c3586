"""The clock of a connection: only a client that the server waits for is cut off, and only after the whole idle time."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from nightshift.common.settings import load_settings
from nightshift.producer.serve import connections

IDLE_SECONDS = 60.0

HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n"
WHOLE = HEAD + b"\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n"


class Transport(asyncio.Transport):
    """A connection whose client takes nothing of what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.1.2.3", 4), "sockname": ("10.0.0.1", 80)})
        self.written = b""
        self.closing = self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Clock:
    """A loop whose time a test moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = 0.0
        self.create_task = loop.create_task
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Callable[[], object]]] = []
        self._loop = loop

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now + delay, call, (), self._loop)
        self._timers.append((timer.when(), len(self._timers), timer, call))
        return timer

    def pass_by(self, seconds: float) -> None:
        """Time passes, and what falls due runs."""
        until = self.now + seconds
        while due := sorted(each for each in self._timers if each[0] <= until):
            self._timers.remove(due[0])
            self.now, _, timer, call = due[0]
            if not timer.cancelled():
                call()
        self.now = until


class Client:
    """A client of a server whose application reads a body once `reads` is set, and then answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reads = asyncio.Event()
        self.transport = Transport()
        self.clock = Clock(loop)
        self._loop = loop
        config = Config(
            self._application,
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            lifespan="off",
        )
        settings = load_settings(serve_idle_seconds=IDLE_SECONDS)
        protocol: Any = connections.protocol(settings)
        self.connection = protocol(config, ServerState(), {}, _loop=self.clock)
        self.connection.connection_made(self.transport)

    async def _application(self, _scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            await self.reads.wait()
            more = (await receive()).get("more_body", False)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def sends(self, data: bytes) -> None:
        self.connection.data_received(data)
        for _ in range(10):  # what the application does with it
            self._loop.run_until_complete(asyncio.sleep(0))

    def is_cut_off_after(self, seconds: float) -> bool:
        self.clock.pass_by(seconds)
        return self.transport.aborted


@pytest.fixture
def client() -> Iterator[Client]:
    loop = asyncio.new_event_loop()
    found = Client(loop)
    yield found
    found.reads.set()
    found.connection.connection_lost(None)
    loop.run_until_complete(asyncio.sleep(0))
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_a_body_may_take_long_while_it_moves_and_not_once_it_stops(client: Client) -> None:
    client.reads.set()
    client.sends(UPLOAD + b"\r\n")
    for _ in range(5):
        assert not client.is_cut_off_after(IDLE_SECONDS * 0.9)
        client.sends(b"x" * 1000)
    assert client.is_cut_off_after(IDLE_SECONDS * 2)


@pytest.mark.parametrize("before", [(), (WHOLE,)], ids=["first", "second"])
def test_a_head_that_moves_must_be_whole_in_time(client: Client, before: Sequence[bytes]) -> None:
    client.reads.set()
    for data in (*before, HEAD):
        client.sends(data)
    assert not client.is_cut_off_after(IDLE_SECONDS * 0.6)
    client.sends(b"x: y\r\n")
    assert client.is_cut_off_after(IDLE_SECONDS)


def test_the_bytes_of_a_body_do_not_count_for_the_head_of_the_next_request(client: Client) -> None:
    client.reads.set()
    client.sends(UPLOAD + b"\r\n")
    for _ in range(2):
        client.sends(b"x" * 100_000)
    client.sends(HEAD)
    client.sends(b"\r\n")
    assert client.transport.written.count(b"HTTP/1.1 204 ") == 2
    assert not client.transport.closing


@pytest.mark.parametrize(
    "request_bytes",
    [WHOLE, UPLOAD + b"expect: 100-continue\r\n\r\n", UPLOAD + b"\r\n" + b"x" * 150_000],
    ids=["an answer", "100 Continue", "room for more of the body"],
)
def test_who_waits_for_the_server_is_not_cut_off(client: Client, request_bytes: bytes) -> None:
    client.sends(request_bytes)
    assert not client.is_cut_off_after(IDLE_SECONDS * 10)


def test_who_takes_the_answer_again_in_time_is_not_cut_off(client: Client) -> None:
    client.sends(WHOLE)
    client.connection.pause_writing()
    assert not client.is_cut_off_after(IDLE_SECONDS * 0.9)
    client.connection.resume_writing()
    assert not client.is_cut_off_after(IDLE_SECONDS * 2)
    client.connection.pause_writing()
    assert client.is_cut_off_after(IDLE_SECONDS * 2)


def test_who_does_not_take_the_end_of_an_answer_is_cut_off(client: Client) -> None:
    client.reads.set()
    client.sends(b"GET / HTTP/1.0\r\n\r\n")
    assert client.transport.closing
    assert not client.is_cut_off_after(IDLE_SECONDS * 0.9)
    assert client.is_cut_off_after(IDLE_SECONDS)


def test_a_head_that_is_too_long_is_refused_once(client: Client) -> None:
    client.sends(HEAD + b"x: " + b"y" * 70_000 + b"\r\n\r\n")
    assert client.transport.written.count(b"HTTP/1.1 ") == 1
    assert client.transport.written.startswith(b"HTTP/1.1 431 ")
    assert client.transport.closing


@pytest.mark.parametrize(("proxies", "bound"), [("10.0.0.0/8", False), ("192.0.2.0/24", True)])
def test_a_trusted_proxy_has_any_number_of_connections(proxies: str, bound: bool) -> None:
    limits = connections.Limits(load_settings(serve_max_connections=1, serve_proxies=proxies))
    assert limits.enter("10.1.2.3")
    assert limits.enter("10.1.2.3") is not bound
    limits.leave("10.1.2.3")
    assert limits.enter("10.9.9.9")
