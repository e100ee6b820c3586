"""Clients that stall: cut off after a while, bounded by tenant and address, and no matter for the others."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from nightshift.common.ledger import Ledger
from nightshift.producer.serve.ledger import keys, tenants
from tests.support.fleet import wait_until
from tests.support.serve import Door

MANY = 300

CROWD = ("beta", "gamma", "delta", "epsilon")

FORM = b'--B\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\n'


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    found = Door(tmp_path / "door", database_url, redis_url, {})
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def held(ledger: Ledger) -> dict[str, dict[str, str]]:
    """The header of a user of each of some tenants."""
    found = {}
    with ledger.transaction() as connection:
        for name in ("acme", "other", *CROWD):
            tenants.ensure(connection, name)
            key = keys.create(connection, name, name, "user", None)[1]
            found[name] = {"authorization": f"Bearer {key}"}
    return found


def connected(door: Door, stack: ExitStack, data: bytes) -> socket.socket:
    """A connection that has sent this, and sends no more."""
    found = stack.enter_context(closing(socket.create_connection(("127.0.0.1", door.port), 60)))
    found.sendall(data)
    return found


def is_cut(connection: socket.socket) -> bool:
    """Whether the server ends the connection without a word, within its timeout."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def upload(headers: dict[str, str], size: int) -> bytes:
    """The beginning of an upload of so many bytes."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST /v1/files HTTP/1.1\r\nhost: a\r\n{head}content-length: {size}\r\n"
        "content-type: multipart/form-data; boundary=B\r\n\r\n"
    ).encode() + FORM


def open_connections(door: Door) -> list[str]:
    """Connections that the server holds, as Linux lists them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = f":{door.port:04X}"
    return [line[1] for line in lines if line[1].endswith(here) and line[3] == "01"]


def stored(door: Door) -> list[Path]:
    return [path for path in (door.folder / "store").rglob("*.jsonl") if path.is_file()]


@pytest.mark.slow
def test_half_requests_and_silent_clients_are_cut_off_and_others_stay(
    door: Door, held: dict[str, dict[str, str]]
) -> None:
    door.environment["NIGHTSHIFT_SERVE_IDLE_SECONDS"] = "2"
    door.serve()
    key = held["acme"]["authorization"]
    half_body = f"POST /v1/batches HTTP/1.1\r\nhost: a\r\nauthorization: {key}\r\ncontent-length: 9\r\n\r\n{{"
    with ExitStack() as stack:
        half = [
            connected(door, stack, b"GET /v1/files HTTP/1.1\r\nhost: a\r\n") for _ in range(MANY)
        ]
        half += [connected(door, stack, b"") for _ in range(10)]
        half += [connected(door, stack, half_body.encode())]
        half += [connected(door, stack, upload(held["acme"], 1000))]
        answer = httpx.get(
            f"http://127.0.0.1:{door.port}/v1/files", headers=held["other"], timeout=60
        )
        assert answer.status_code == 200
        assert all(map(is_cut, half))
    wait_until(lambda: stored(door) == [], what="the end of what the stalled upload has sent")


def test_a_head_that_is_too_long_or_malformed_is_refused(door: Door) -> None:
    door.serve()
    with ExitStack() as stack:
        endless = connected(door, stack, b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 70_000)
        broken = connected(door, stack, b"no request at all\r\n\r\n")
        whole = connected(
            door, stack, b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"
        )
        many = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(70))
        headers = connected(door, stack, b"GET /healthz HTTP/1.1\r\nhost: a\r\n" + many + b"\r\n")
        for connection, status in (
            (endless, b"431"),
            (whole, b"431"),
            (headers, b"431"),
            (broken, b"400"),
        ):
            answer = connection.recv(1000)
            assert answer.startswith(b"HTTP/1.1 %s " % status)
            for header in (b"x-content-type-options: nosniff", b"cache-control: private, no-cache"):
                assert b"\r\n%s\r\n" % header in answer, answer


@pytest.mark.slow
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(
    door: Door, held: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    door.environment["NIGHTSHIFT_SERVE_IDLE_SECONDS"] = "2"
    door.serve()
    base = f"http://127.0.0.1:{door.port}/v1/files"
    form = {"files": {"file": ("a.jsonl", b"x" * 50_000_000)}, "data": {"purpose": "batch"}}
    file = httpx.post(base, headers=held["acme"], timeout=60, **form).json()["id"]
    with ExitStack() as stack:
        ask = f"GET /v1/files/{file}/content HTTP/1.1\r\nhost: a\r\nauthorization: {held['acme']['authorization']}\r\n\r\n"
        stalled = connected(door, stack, ask.encode())
        wait_until(lambda: len(open_connections(door)) == 1, what="the download")
        wait_until(lambda: open_connections(door) == [], what="the end of the download")
        taken, is_over = 0, False
        while not is_over:
            try:
                piece = stalled.recv(1_000_000)
            except ConnectionResetError:
                piece = b""
            taken, is_over = taken + len(piece), not piece
        assert taken < 50_000_000


def test_stalled_uploads_of_a_tenant_leave_room_for_those_of_others(
    door: Door, held: dict[str, dict[str, str]]
) -> None:
    door.serve()
    with ExitStack() as stack:
        stalled = [connected(door, stack, upload(held["acme"], 1000)) for _ in range(410)]
        refused = wait_until(
            lambda: [each for each in stalled if _has_answer(each)],
            what="the uploads that are too many",
        )
        answers = [_whole_answer(each) for each in refused]
        assert all(b"429" in each and b"too_many_at_once" in each for each in answers)
        wait_until(lambda: len(stored(door)) == 100, what="the uploads that have their turn")
        others_upload(door, held["other"])
    wait_until(lambda: len(stored(door)) == 3, what="the end of what has stalled")


@pytest.mark.slow
def test_stalled_uploads_of_four_tenants_leave_room_for_those_of_others(
    door: Door, held: dict[str, dict[str, str]]
) -> None:
    """They once held every thread."""
    door.serve()
    with ExitStack() as stack:
        for name in CROWD:
            for _ in range(100):
                connected(door, stack, upload(held[name], 1000))
        wait_until(lambda: len(stored(door)) == 400, what="the uploads that have their turn")
        others_upload(door, held["other"])
    wait_until(lambda: len(stored(door)) == 3, what="the end of what has stalled")


def others_upload(door: Door, headers: dict[str, str]) -> None:
    """Three whole uploads of somebody else."""
    form = {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "batch"}}
    base = f"http://127.0.0.1:{door.port}/v1/files"
    for _ in range(3):
        answer = httpx.post(base, headers=headers, timeout=60, **form)
        assert answer.status_code == 200, answer.text


def _whole_answer(connection: socket.socket) -> bytes:
    """The head and the body of a refusal, which may come apart."""
    connection.settimeout(60)
    said = b""
    while not said.endswith(b"}") and (more := connection.recv(1000)):
        said += more
    return said


def _has_answer(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(60)


def test_an_address_has_some_of_the_connections_and_not_all(door: Door) -> None:
    door.environment["NIGHTSHIFT_SERVE_MAX_CONNECTIONS"] = "5"
    door.environment["NIGHTSHIFT_SERVE_PROXIES"] = "10.0.0.0/8"
    door.serve()
    with ExitStack() as stack:
        held = [connected(door, stack, b"GET /healthz HTTP/1.1\r\nhost: a\r\n") for _ in range(5)]
        more = connected(door, stack, b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        assert more.recv(1000).startswith(b"HTTP/1.1 503 ")
        held.pop().close()
        wait_until(lambda: _answers(door), what="an answer once there is room")
        held[0].sendall(b"\r\n")
        assert held[0].recv(1000).startswith(b"HTTP/1.1 200 ")


def test_who_asks_for_a_websocket_stays_in_the_count_of_connections(door: Door) -> None:
    door.environment["NIGHTSHIFT_SERVE_MAX_CONNECTIONS"] = "5"
    door.environment["NIGHTSHIFT_SERVE_PROXIES"] = "10.0.0.0/8"
    door.serve()
    upgrade = (
        b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    for _ in range(8):
        with ExitStack() as stack:
            assert connected(door, stack, upgrade).recv(1000)
    wait_until(lambda: _answers(door), seconds=20, what="an answer once all have left")


def _answers(door: Door) -> bool:
    with ExitStack() as stack:
        one = connected(
            door, stack, b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        )
        return one.recv(1000).startswith(b"HTTP/1.1 200 ")
