"""The HTTP API for a test: `nightshift serve` beside reapers and a worker, with a store and models."""

import socket
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml
from openai import OpenAI

from tests.support.fleet import Fleet, wait_until

ENDED = ("completed", "failed", "expired", "cancelled")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


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
        return process

    def client(self, key: str = "none", **options: Any) -> OpenAI:
        """The official client, unmodified."""
        return OpenAI(base_url=self.url, api_key=key, **options)

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
