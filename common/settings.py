"""The only reader of the environment: one frozen, validated object, passed in from the top."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from common.errors import BadInput

Words = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """What an operator may set, as NIGHTSHIFT_<NAME> in the environment.

    Durations are in seconds, sizes in bytes. Lists are separated by commas, paths by colons.
    """

    model_config = SettingsConfigDict(env_prefix="NIGHTSHIFT_", frozen=True, extra="ignore")

    database_url: str | None = Field(None, description="postgresql://… of the ledger.")
    broker_url: str | None = Field(None, description="redis://… that carries the hints.")
    home: Path = Field(Path(".nightshift"), description="Folder of the embedded servers.")

    answer_seconds: float = Field(
        30, gt=0, description="Postgres silent for so long counts as away."
    )
    lease_seconds: float = Field(30, gt=0, description="How long a lease lives unrenewed.")
    heartbeat_seconds: float = Field(10, gt=0, description="How often leases are renewed.")
    poll_seconds: float = Field(2, gt=0, description="How often an idle child asks Postgres.")
    dispatch_seconds: float = Field(0.5, gt=0, description="Pause between two reaper rounds.")
    drain_seconds: float = Field(30, ge=0, description="Time to finish rows after SIGTERM.")
    engine_idle_seconds: float = Field(
        60, ge=0, description="Nothing to claim for so long frees a slot for other work."
    )
    engine_stall_seconds: float = Field(
        120, gt=0, description="No progress in the engine for so long ends the child."
    )
    load_backoff_seconds: float = Field(
        2, gt=0, description="Pause after the first failed engine load; doubles up to 60."
    )
    read_cache_bytes: int = Field(512 * 2**20, ge=0, description="Decoded input kept by a child.")

    allowed_modules: Words = Field((), description="Modules that function engines may load.")
    callable_paths: Words = Field((), description="Folders searched for those, after all others.")
    allowed_roots: Words = Field(
        (), description="Prefixes that input and output URIs must have; empty allows all."
    )

    log_format: Literal["console", "json"] = Field("console", description="Form of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("allowed_modules", "allowed_roots", mode="before")
    @classmethod
    def _commas(cls, value: object) -> object:
        return _words(value, ",")

    @field_validator("callable_paths", mode="before")
    @classmethod
    def _colons(cls, value: object) -> object:
        return _words(value, ":")

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Self:
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError("heartbeat_seconds must be at most half of lease_seconds")
        return self

    def environment(self) -> dict[str, str]:
        """These settings as environment variables for a child process; unset ones are left out."""
        variables: dict[str, str] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is None or value == field.default:
                continue
            if isinstance(value, tuple):
                value = (":" if name == "callable_paths" else ",").join(value)
            variables[f"NIGHTSHIFT_{name.upper()}"] = str(value)
        return variables


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment; BadInput names the variable that cannot be used."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        said = "; ".join(
            f"NIGHTSHIFT_{'.'.join(str(step) for step in mistake['loc']).upper()}: "
            f"{mistake['msg'].removeprefix('Value error, ')}".removeprefix("NIGHTSHIFT_: ")
            for mistake in error.errors()
        )
        raise BadInput(f"the environment cannot be used: {said}") from error


def child_environment(settings: Settings, **extra: str) -> dict[str, str]:
    """The environment of this process with `settings` and `extra` laid over it."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")
    }
    return {**inherited, **settings.environment(), **extra}


def python_path() -> tuple[str, ...]:
    """The folders of PYTHONPATH, absolute, as the user gave them."""
    given = os.environ.get("PYTHONPATH", "")
    return tuple(str(Path(folder).resolve()) for folder in given.split(os.pathsep) if folder)


def visible_gpus() -> tuple[str, ...]:
    """GPUs of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(gpu.strip() for gpu in given.split(",") if gpu.strip())
    return tuple(
        device.name.removeprefix("nvidia")
        for device in sorted(Path("/dev").glob("nvidia[0-9]*"), key=lambda path: path.name)
    )


def _words(value: object, separator: str) -> object:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(separator) if word.strip())
    return value
