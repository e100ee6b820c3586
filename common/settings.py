"""The only reader of the environment: one frozen, validated object, passed in from the top."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from nightshift.common import remotes
from nightshift.common.errors import BadInput


def _separated(by: str) -> BeforeValidator:
    def words(value: object) -> object:
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(by) if word.strip())
        return value

    return BeforeValidator(words)


Words = Annotated[tuple[str, ...], NoDecode, _separated(",")]

WordsIfSet = Annotated[tuple[str, ...] | None, NoDecode, _separated(",")]

Folders = Annotated[tuple[str, ...], NoDecode, _separated(":")]

Keys = Annotated[dict[str, SecretStr], NoDecode]


FUNCTION_BASICS = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "PATH",
    "PROMETHEUS_MULTIPROC_DIR",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
)
"""Variables that every function gets, and LC_… with them: where programs, libraries, caches and
temporary files lie, which language, time zone and GPUs it has. None of them is a secret."""

LEAVE_SECONDS = 30.0
"""Time after the drain for a child to leave a silent broker and to close its engine."""


class Settings(BaseSettings):
    """What an operator may set, as NIGHTSHIFT_<NAME> in the environment.

    Durations are in seconds, sizes in bytes. Lists are separated by commas, paths by colons.
    """

    model_config = SettingsConfigDict(
        env_prefix="NIGHTSHIFT_",
        frozen=True,
        extra="ignore",
        # The message about a key that cannot be parsed must not hold the key.
        hide_input_in_errors=True,
    )

    database_url: str | None = Field(None, description="postgresql://… of the ledger.")
    broker_url: str | None = Field(None, description="redis://… that carries the hints.")
    home: Path = Field(Path(".nightshift"), description="Folder of the embedded servers.")

    answer_seconds: float = Field(
        30, gt=0, description="Postgres silent for so long counts as away."
    )
    lease_seconds: float = Field(30, gt=0, description="How long a lease lives unrenewed.")
    heartbeat_seconds: float = Field(10, gt=0, description="How often leases are renewed.")
    poll_seconds: float = Field(
        2, gt=0, description="An idle child whose supervisor is silent for so long asks Postgres."
    )
    dispatch_seconds: float = Field(0.5, gt=0, description="Pause between two reaper rounds.")
    drain_seconds: float = Field(30, ge=0, description="Time to finish rows after SIGTERM.")
    preempt_seconds: float = Field(
        10, ge=0, description="Time to finish rows once the machine is taken away, if shorter."
    )
    engine_idle_seconds: float = Field(
        0, ge=0, description="How long an engine stays after its last work while others want slots."
    )
    engine_stall_seconds: float = Field(
        120, gt=0, description="No progress in the engine for so long ends the child."
    )
    stage_timeout_seconds: float = Field(
        300,
        gt=0,
        description="Reading, rendering or writing that comes to no next row or file for so long "
        "gives its batches back.",
    )
    load_backoff_seconds: float = Field(
        2, gt=0, description="Pause after the first failed engine load; doubles up to 600."
    )
    one_machine: bool = Field(
        False,
        description="No other machine will come: what it can never load fails its jobs at once. Void while another lives in the pool.",
    )
    retention_days: int | None = Field(
        None, ge=1, description="Closed jobs leave the ledger for files after so many days."
    )
    read_cache_bytes: int = Field(512 * 2**20, ge=0, description="Decoded input kept by a child.")

    allowed_modules: Words = Field((), description="Modules that function engines may load.")
    callable_paths: Folders = Field(
        (), description="Folders searched for those, before all others."
    )
    function_env: Words = Field(
        (), description="Variables of this environment that functions get beside FUNCTION_BASICS."
    )
    function_memory_bytes: int | None = Field(
        None, gt=0, description="Resident size at which the process of a function is ended."
    )
    allowed_roots: Words = Field(
        (), description="Prefixes that input and output URIs must have; empty allows all."
    )

    allowed_models: Words = Field(
        (), description="Patterns of models that engines may use; empty allows all."
    )
    allowed_engine_args: WordsIfSet = Field(
        None,
        description="NAME, or NAME:MODEL for what runs code: engine arguments beyond the plain ones.",
    )
    allowed_remotes: Words = Field(
        (), description="Prefixes that addresses of remote engines must have; empty allows all."
    )
    api_keys: Keys = Field(
        {},
        description="JSON object of base URL to API key: each key goes to its own address alone.",
    )
    openai_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("openai_api_key", "OPENAI_API_KEY"),
        description="OPENAI_API_KEY: the key of the address below, and of no other.",
    )
    openai_base_url: str = Field(
        remotes.OPENAI,
        validation_alias=AliasChoices("openai_base_url", "OPENAI_BASE_URL"),
        description="OPENAI_BASE_URL: where OPENAI_API_KEY is for.",
    )

    run_dir: Path | None = Field(
        None,
        description="Folder where running processes keep what probes and metrics need; each its own.",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port on which a reaper or a worker serves its metrics; 0 takes a free one.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address on which it does so.")
    metrics_key: SecretStr | None = Field(
        None, min_length=1, description="Bearer token that a scrape must bring."
    )

    log_format: Literal["console", "json"] = Field("console", description="Form of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("function_env")
    @classmethod
    def _not_ours(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if ours := [name for name in value if name.upper().startswith("NIGHTSHIFT_")]:
            raise ValueError(f"{ours[0]} is a setting of Nightshift, which functions do not get")
        return value

    @field_validator("run_dir", "metrics_key", mode="before")
    @classmethod
    def _unset(cls, value: object) -> object:
        return None if value == "" else value  # run_dir: as common/telemetry/run_state.py has it

    @field_validator("api_keys", mode="before")
    @classmethod
    def _json(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            # Not chained: the decoder's error holds the text, and the text holds the keys.
            raise ValueError("is no JSON object of base URL to key") from None

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Self:
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError("heartbeat_seconds must be at most half of lease_seconds")
        return self

    @property
    def leave_seconds(self) -> float:
        """The longest that a worker may take to leave after SIGTERM."""
        return 2 * self.drain_seconds + LEAVE_SECONDS

    def api_key(self, base_url: str) -> SecretStr | None:
        """The key that is bound to this very address; None where there is none."""
        wanted = remotes.address(base_url)
        for bound, key in self.api_keys.items():
            if remotes.address(bound) == wanted:
                return key
        if remotes.address(self.openai_base_url or remotes.OPENAI) == wanted:
            return self.openai_api_key
        return None

    def environment(self) -> dict[str, str]:
        """These settings as environment variables for a child process, without those that are unset
        and those of other programs, which the child inherits.
        """
        variables: dict[str, str] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is None or value == field.default or field.validation_alias is not None:
                continue
            if name == "api_keys":
                value = json.dumps({url: key.get_secret_value() for url, key in value.items()})
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            if isinstance(value, tuple):
                value = (":" if name == "callable_paths" else ",").join(value)
            variables[f"NIGHTSHIFT_{name.upper()}"] = str(value)
        return variables


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment; BadInput names the variable that cannot be used."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        mistakes = "; ".join(
            f"NIGHTSHIFT_{'.'.join(str(step) for step in mistake['loc']).upper()}: "
            f"{mistake['msg'].removeprefix('Value error, ')}".removeprefix("NIGHTSHIFT_: ")
            for mistake in error.errors()
        )
        raise BadInput(f"the environment cannot be used: {mistakes}") from error


def child_environment(
    settings: Settings,
    unless_given: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    /,
    **extra: str,
) -> dict[str, str]:
    """The environment of this process with `settings` and `extra` laid over it, and none of the
    variables in `without`.

    `unless_given` counts as a whole: where this process has one of its variables, none is used.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("NIGHTSHIFT_") and name not in without
    }
    defaults = unless_given or {}
    if defaults.keys() & inherited.keys():
        defaults = {}
    return {**inherited, **defaults, **settings.environment(), **extra}


def function_environment(settings: Settings) -> dict[str, str]:
    """The environment of a function's process: FUNCTION_BASICS, and what the operator names."""
    names = {*FUNCTION_BASICS, *settings.function_env}
    return {
        name: value for name, value in os.environ.items() if name in names or name.startswith("LC_")
    }


def python_path() -> tuple[str, ...]:
    """The folders of PYTHONPATH, absolute, as the user gave them."""
    given = os.environ.get("PYTHONPATH", "")
    return tuple(str(Path(folder).resolve()) for folder in given.split(os.pathsep) if folder)


def visible_gpus(devices: Path = Path("/dev")) -> tuple[str, ...]:
    """GPUs of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them.

    CUDA numbers the GPUs that it sees from 0: in a container that has only GPU 3 of the machine,
    the device is /dev/nvidia3 and the GPU is 0.
    """
    given = named_gpus()
    if given is not None:
        return given
    return tuple(str(place) for place, _ in enumerate(devices.glob("nvidia[0-9]*")))


def named_gpus() -> tuple[str, ...] | None:
    """CUDA_VISIBLE_DEVICES: the GPUs that this process was given; None where it is not set."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return None
    return tuple(gpu.strip() for gpu in given.split(",") if gpu.strip())
