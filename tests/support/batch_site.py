"""Batches of the HTTP API over a real ledger, step by step and without a fleet."""

import json
from pathlib import Path
from typing import Any

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings, load_settings
from nightshift.producer.serve.api_batches import finalize, validate
from nightshift.producer.serve.ledger import (
    api_batch_steps,
    api_batches,
    files,
    tenants,
)
from nightshift.producer.serve.ledger.api_batches import ApiBatch, NewApiBatch

ENDPOINT = "/v1/chat/completions"


class Site:
    """A ledger with a tenant, a model and batches of one file."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger, self.folder, self.made = ledger, folder, 0
        (folder / "models.yaml").write_text("models: {m: {engine: {backend: vllm, model: a/b}}}")
        self.settings: Settings = load_settings(
            serve_store=str(folder / "store"), serve_models=folder / "models.yaml"
        )

    def batch(self, *lines: Any, tenant: str = "acme") -> ApiBatch:
        """A batch of a file with these lines."""
        self.made += 1
        file_id, place = f"file-{self.made}", self.folder / f"{self.made}.jsonl"
        place.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
        with self.ledger.transaction() as connection:
            tenants.ensure(connection, tenant)
            files.receive(connection, file_id, tenant, str(place))
            size = place.stat().st_size
            files.ready(
                connection, file_id, purpose="batch", filename="x", size=size, expires_after=None
            )
            new = NewApiBatch(
                f"batch_{self.made}",
                tenant,
                ENDPOINT,
                file_id,
                "1h",
                3600,
                None,
                None,
                {},
                "me",
                b"x",
            )
            found = api_batches.insert(connection, new)
        assert found is not None
        return found

    def seen(self, batch: ApiBatch) -> ApiBatch:
        with self.ledger.transaction() as connection:
            found = api_batches.get(connection, batch.tenant, batch.id)
        assert found is not None
        return found

    def cancel(self, batch: ApiBatch) -> None:
        with self.ledger.transaction() as connection:
            found = api_batches.locked(connection, batch.tenant, batch.id)
            assert found is not None
            api_batch_steps.cancel(connection, found)

    def jobs(self) -> int:
        with self.ledger.transaction() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM jobs").scalar_one())

    def finalize(self) -> bool:
        return finalize.finalize_once(self.ledger, self.settings, "r-1")

    def sql(self, statement: str) -> None:
        with self.ledger.transaction() as connection:
            connection.exec_driver_sql(statement)

    def validate(self) -> bool:
        return validate.validate_once(self.ledger, self.settings, "r-1")


def line(id: str = "a", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": id,
        "method": "POST",
        "url": ENDPOINT,
        "body": {"model": "m", "messages": [], **body},
    }


OVER = "UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()"

RUNNING_AGAIN = "UPDATE jobs SET state = 'running', finished_at = NULL, closed_at = NULL"


def over(site: Site, batch: ApiBatch) -> None:
    """The job of a batch is over, and a part of it is gone."""
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE batches SET state = 'done', part_name = 'part-gone.parquet', part_bytes = 1, "
            "part_checksum = 'x'"
        )
        connection.exec_driver_sql(OVER)


def results(site: Site, batch: ApiBatch) -> str:
    """A file of answers that the batch has."""
    with site.ledger.transaction() as connection:
        files.receive(connection, "file-out", "acme", str(site.folder / "out"))
        given = {"purpose": "batch_output", "filename": "o", "size": 1, "expires_after": None}
        files.ready(connection, "file-out", **given)  # type: ignore[arg-type]
        connection.exec_driver_sql(
            "UPDATE api_batches SET state = 'completed', completed_at = now(), rows_failed = 1, "
            "rows_completed = 7, output_file_id = 'file-out'"
        )
    return "file-out"


def is_seen(site: Site, file_id: str) -> bool:
    with site.ledger.transaction() as connection:
        return files.get(connection, "acme", file_id) is not None
