"""Settings of the HTTP API, which `nightshift serve` and reapers read; fields of `common/settings.py`."""

from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, IPvAnyNetwork, SecretStr, field_validator
from pydantic_settings import NoDecode


def _networks(value: str | Sequence[object]) -> Sequence[object]:
    """Networks as a variable has them, with commas between."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


Networks = Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_networks)]


class ServeSettings(BaseModel):
    """What an operator may set for the HTTP API. Sizes in bytes."""

    serve_host: str = Field(
        "127.0.0.1",
        description="Address of `nightshift serve`. Beyond loopback there must be a key, or a trusted proxy.",
    )
    serve_port: int = Field(8080, ge=0, le=65535, description="Its port; 0 takes a free one.")
    serve_store: str | None = Field(
        None,
        description="Folder or URI for the files of the HTTP API, the same for every `serve` and reaper. Unset: no files and no batches.",
    )
    serve_models: Path | None = Field(
        None,
        description="YAML file that says which engine a name of a model means ([batch-api.md](batch-api.md#models)), the same for every `serve` and reaper.",
    )
    serve_tenant_header: str | None = Field(
        None,
        description="Header in which a trusted proxy names the tenant, in place of a key ([security.md](security.md#the-http-api)).",
    )
    serve_proxies: Networks = Field(
        (ip_network("127.0.0.0/8"), ip_network("::1/128")),
        description="Networks of trusted proxies, with commas between. The header counts from there alone.",
    )
    serve_idle_seconds: float = Field(
        60,
        gt=0,
        description="A client that sends nothing of its request, or takes nothing of its answer, for this time is cut off; the whole head of a request must come within this time.",
    )
    serve_max_connections: int = Field(
        500,
        gt=0,
        description="Most connections that one address may have at once. Proxies in `NIGHTSHIFT_SERVE_PROXIES` are not bound: behind a proxy the proxy bounds its clients.",
    )
    serve_max_requests: int = Field(
        50_000, gt=0, description="Most requests that a batch file may have."
    )
    serve_max_batch_bytes: int = Field(
        200 * 2**20, gt=0, description="Largest size of a batch file; 200 MiB by default."
    )
    serve_max_embedding_inputs: int = Field(
        50_000, gt=0, description="Most inputs of embeddings that a batch file may have."
    )
    serve_max_file_bytes: int | None = Field(
        None,
        gt=0,
        description="Largest size of an uploaded file; unset: what its tenant may store.",
    )
    serve_max_unpack_ratio: float = Field(
        100,
        ge=1,
        description="How many times its own size a compressed input of a tenant may unpack to; 64 MiB are allowed always, and 256 MiB of decoded Parquet. Operators are not bound.",
    )
    serve_file_days: int = Field(
        30,
        ge=1,
        le=30,
        description="How long a file for a batch lives unless its upload says less.",
    )
    webhook_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="From it the secret of each webhook is derived; the same for every `serve` and reaper. Unset: no webhooks.",
    )
    webhook_private: bool = Field(
        False, description="Whether webhooks may go to private and loopback addresses."
    )

    @field_validator(
        "serve_store",
        "serve_models",
        "serve_tenant_header",
        "serve_max_file_bytes",
        "webhook_key",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if value == "" else value
