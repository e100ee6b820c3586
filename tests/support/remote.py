"""A server of the OpenAI API on loopback that does to each request what its test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One request; header names in lower case; `number` counts those with the same text, from 1."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    text: str
    number: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What is sent back: `body` as JSON, bytes as they are. `cut` closes before the end, `hang`
    waits for the end of the server.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False


def refused(status: int, message: str, code: str | None = None, **headers: str) -> Reply:
    """An error as OpenAI writes it; underscores in header names are dashes."""
    error = {"message": message, "type": "error", "param": None, "code": code}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": error}, named)


def answered(call: Call, **fields: Any) -> Reply:
    """The text in capitals, seven prompt tokens and three of output; a vector for an embedding."""
    if call.path.endswith("/embeddings"):
        vector = [3.0, 4.0, float(len(call.text))]
        data = [{"object": "embedding", "index": 0, "embedding": vector}]
        return Reply(body={"data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}})
    message = {"role": "assistant", "content": call.text.upper()}
    choice = {"index": 0, "message": message, "text": call.text, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return Reply(body={"id": "c-1", "choices": [choice], "usage": usage, **fields})


Behaviour = Callable[[Call], Reply]


class Remote:
    """The server; `calls` holds every POST, `looks` counts the GETs."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.looks: list[dict[str, str]] = []
        self.behave: Behaviour = answered
        self.look: Reply = Reply(body={"object": "list", "data": [{"id": "m"}]})
        self.most_at_once = 0
        self._at_once = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextmanager
    def running(self) -> Iterator["Remote"]:
        """Serves until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def texts(self) -> list[str]:
        """What was asked, in order of arrival."""
        return [call.text for call in self.calls]

    def _called(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        if "messages" in body:
            text = body["messages"][-1]["content"]
        else:
            text = body.get("input", body.get("prompt", ""))
        with self._lock:
            number = 1 + sum(call.text == text for call in self.calls)
            call = Call(path, body, headers, text, number)
            self.calls.append(call)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return self.behave(call)
        finally:
            with self._lock:
                self._at_once -= 1

    def _handler(remote) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body are two writes, of which the second would wait 40 ms for an acknowledgement.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(size))
                self._send(remote._called(self.path, body, self._heard()))

            def do_GET(self) -> None:
                remote.looks.append(self._heard())
                self._send(remote.look)

            def _heard(self) -> dict[str, str]:
                return {name.lower(): value for name, value in self.headers.items()}

            def _send(self, reply: Reply) -> None:
                if reply.hang:
                    remote._ended.wait()
                    self.close_connection = True
                    return
                sent = reply.body if isinstance(reply.body, bytes) else _json(reply.body)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(sent) + 50 * reply.cut))
                self.end_headers()
                self.wfile.write(sent)
                self.close_connection = reply.cut

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()
