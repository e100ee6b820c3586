"""The HTTP API for a test: `nightshift serve` beside reapers and a worker, with a store and models."""

import contextlib
import itertools
import os
import socket
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml
from openai import OpenAI

from tests.support.fleet import Fleet, wait_until

CLIENT_SECONDS = 100
"""Time limit of a request that a test sends to a server of its own.

The clients' defaults (five seconds for a connection, in httpx for an answer as well) are shorter than
what a busy machine with two cores may need.
"""

ENDED = ("completed", "failed", "expired", "cancelled")


FIRST_PORT, PORTS_EACH = 20_000, 1_000
"""Below the ports that Linux gives to whoever asks for any; each process of the run has its own."""

_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.cycle(
    range(FIRST_PORT + _process * PORTS_EACH, FIRST_PORT + (_process + 1) * PORTS_EACH)
)


def free_port() -> int:
    """A port that nobody listens on now, and that no other test takes before the server has it."""
    for port in itertools.islice(_PORTS, PORTS_EACH):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


class Door(Fleet):
    """A fleet with an HTTP API; `models` is the table of models by name."""

    def __init__(
        self, folder: Path, url: str, broker: str, models: dict[str, Any], **environment: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "models.yaml").write_text(yaml.safe_dump({"models": models}))
        self.port = free_port()
        super().__init__(
            folder,
            **{
                "NIGHTSHIFT_DATABASE_URL": url,
                "NIGHTSHIFT_BROKER_URL": broker,
                "NIGHTSHIFT_SERVE_PORT": str(self.port),
                "NIGHTSHIFT_SERVE_STORE": str(folder / "store"),
                "NIGHTSHIFT_SERVE_MODELS": str(folder / "models.yaml"),
                **environment,
            },
        )

    @property
    def url(self) -> str:
        """The base URL that a client is given."""
        return f"http://127.0.0.1:{self.port}/v1"

    def serve(self) -> Any:
        """Starts a server and waits until it answers."""
        process = self.start("nightshift.producer.cli", "serve")
        wait_until(self._answers, what="an answer of the server")
        assert process.poll() is None, "another server has answered"
        return process

    def client(self, key: str = "none", **options: Any) -> OpenAI:
        """The official client, unmodified."""
        return OpenAI(
            **{"base_url": self.url, "api_key": key, "timeout": CLIENT_SECONDS, **options}
        )

    def ended(self, client: OpenAI, batch_id: str) -> Any:
        """The batch, once it is over."""

        def look() -> Any:
            batch = client.batches.retrieve(batch_id)
            return batch if batch.status in ENDED else None

        return wait_until(look, what=f"the end of {batch_id}")

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
