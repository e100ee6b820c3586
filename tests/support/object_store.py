"""moto's S3 on loopback, behind what a bad day does to an object store."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import s3fs
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from nightshift.common.storage import objects

BUCKET = "bucket"
SLOW_SECONDS = 0.5

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
BROKEN = b"<Error><Code>InternalError</Code><Message>We met an error</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
ANSWERS = {"500": BROKEN, "503": BUSY, "403": DENIED}

Rule = Callable[[str], str | None]


class ObjectStore:
    """`rule(operation)` says what happens to a request: None (served), "slow" (served late),
    "500", "503", "403", "before" (cut, not served) or "after" (served, then cut before the answer).

    Operations are GET, HEAD, LIST, PUT, COPY and DELETE, and of multipart uploads PART, POST
    (begun, completed) and DELETE. `did` counts the pairs.
    """

    def __init__(self) -> None:
        self.rule: Rule = lambda _operation: None
        self.did: Counter[tuple[str, str | None]] = Counter()
        self._counting = threading.Lock()
        self._creating = threading.Lock()
        self._serve = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def filesystem(self) -> s3fs.S3FileSystem:
        """A client of the store for the test itself; end it with `close_client`."""
        return s3fs.S3FileSystem(
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            key="somebody",
            secret="something",
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    @contextmanager
    def as_own(self) -> Iterator[None]:
        """This process, too, takes it for its own store meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            objects.DRIVERS.pop("s3", None)
            yield
            driver = objects.DRIVERS.pop("s3", None)
            if driver is not None:
                close_client(driver)
                driver.clear_instance_cache()

    def close(self) -> None:
        """Ends the server; what it held is gone."""
        self._server.shutdown()
        self._thread.join(100)
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        operation = _operation(environ)
        verb = self.rule(operation)
        with self._counting:
            self.did[operation, verb] += 1
        if verb == "slow":
            time.sleep(SLOW_SECONDS)
        elif verb in ANSWERS:
            _read_body(environ)
            body = ANSWERS[verb]
            start(f"{verb} Trouble", [("Content-Type", "application/xml")])
            return [] if operation == "HEAD" else [body]
        elif verb == "before":
            return self._cut(environ, start)
        with self._creating if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
            # moto looks whether the object is there, and then stores it, in two steps.
            answer = self._serve(environ, start)
        if verb != "after":
            return answer
        b"".join(answer)
        return self._cut(environ, start)

    def _cut(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        start("200 OK", [])
        return []


def close_client(filesystem: s3fs.S3FileSystem) -> None:
    """Ends the connections of a client, which would else complain when it is collected."""
    filesystem.close_session(filesystem.loop, filesystem.s3)


def _operation(environ: dict[str, Any]) -> str:
    method = str(environ["REQUEST_METHOD"])
    if method == "GET" and "list-type" in environ.get("QUERY_STRING", ""):
        return "LIST"
    if method == "PUT" and "HTTP_X_AMZ_COPY_SOURCE" in environ:
        return "COPY"
    if method == "PUT" and "partNumber" in environ.get("QUERY_STRING", ""):
        return "PART"
    return method


def _read_body(environ: dict[str, Any]) -> None:
    """A server that answers before it has read everything cuts the connection instead."""
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
        pass
