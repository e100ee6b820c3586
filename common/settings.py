"""The only reader of the environment: one frozen, validated object, passed in from the top."""

import json
import os
import sys
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
from nightshift.common.serve_settings import ServeSettings
from nightshift.common.validation import phrase


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
Catalogs = Annotated[dict[str, dict[str, SecretStr]], NoDecode]


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


class Settings(ServeSettings, BaseSettings):
    """What an operator may set, as NIGHTSHIFT_<NAME> in the environment.

    Durations are in seconds, sizes in bytes. Lists are separated by commas, paths by colons.
    `make docs` writes the tables of docs/settings.md from these fields, in this order.
    """

    model_config = SettingsConfigDict(
        env_prefix="NIGHTSHIFT_",
        frozen=True,
        extra="ignore",
        # The message about a key that cannot be parsed must not hold the key.
        hide_input_in_errors=True,
    )

    database_url: str | None = Field(
        None,
        description="`postgresql://…` of the ledger. Unset: the embedded Postgres under `NIGHTSHIFT_HOME`.",
    )
    broker_url: str | None = Field(
        None,
        description="`redis://…` that carries the hints. Without Redis, workers ask Postgres once a second.",
    )
    home: Path = Field(
        Path(".nightshift"), description="Folder of the embedded servers of `nightshift run`."
    )

    lease_seconds: float = Field(
        30,
        gt=0,
        description="How long a lease lives without renewal. Give reapers and workers the same value.",
    )
    heartbeat_seconds: float = Field(
        10, gt=0, description="How often leases are renewed; at most half of a lease."
    )
    poll_seconds: float = Field(
        2,
        gt=0,
        description="An idle child asks Postgres itself when its supervisor, which asks once a second, has been silent for this time.",
    )
    dispatch_seconds: float = Field(0.5, gt=0, description="Pause between two rounds of a reaper.")
    drain_seconds: float = Field(
        30,
        ge=0,
        description="Time to finish rows after SIGTERM. A worker is gone after at most twice this and 30 s.",
    )
    preempt_seconds: float = Field(
        10,
        ge=0,
        description="Time to finish rows once the machine is taken away (`--preempt-file`, SIGUSR1), if that is shorter.",
    )
    answer_seconds: float = Field(
        30, gt=0, description="A Postgres that is silent for this time counts as away."
    )
    engine_idle_seconds: float = Field(
        0,
        ge=0,
        description="How long an engine without work keeps its slot while engines that have slots already want more.",
    )
    engine_stall_seconds: float = Field(
        120, gt=0, description="An engine without progress for this time ends its child."
    )
    stage_timeout_seconds: float = Field(
        300,
        gt=0,
        description="A thread that reads, renders or writes, and comes to no next row or file in this time, loses its batches: they are released, uncharged. Once more than 3 threads of a child hang, the child drains and is replaced.",
    )
    load_backoff_seconds: float = Field(
        2,
        gt=0,
        description="Pause after the first failed engine load. The pause doubles up to 600.",
    )
    one_machine: bool = Field(
        False,
        description="This machine is the whole fleet and no other will come, as under `nightshift run`: an engine that it can never load fails its jobs at the first try, and any other after three. While another machine lives in the pool, the rules of a fleet hold.",
    )

    retention_days: int | None = Field(
        None,
        ge=1,
        description="A reaper moves the batches, attempts and row errors of a job that has been closed for this many days from Postgres to files beside its output ([operations.md](operations.md#retention)). At least 1. Unset: all stay.",
    )

    read_cache_bytes: int = Field(
        512 * 2**20, ge=0, description="Decoded input that a child keeps, 512 MiB."
    )
    function_memory_bytes: int | None = Field(
        None,
        gt=0,
        description="Resident size at which the process of a function is ended and started again. Unset: no limit; where memory runs out, Linux ends that process before its child.",
    )

    allowed_modules: Words = Field(
        (), description="Python modules that `function` engines may load. Empty: none."
    )
    callable_paths: Folders = Field(
        (), description="Folders in which those modules are searched, before all others."
    )
    function_env: Words = Field(
        (),
        description="Variables of the worker that functions get, such as `HF_TOKEN,OMP_NUM_THREADS`, beside those [below](#what-a-function-gets).",
    )
    allowed_roots: Words = Field(
        (),
        description="Prefixes that input and output URIs and model folders must have. Empty: all are allowed.",
    )
    allowed_models: Words = Field(
        (),
        description="Patterns of models that engines may use, such as `Qwen/*` or `/models/*`. Empty: all are allowed.",
    )
    allowed_engine_args: WordsIfSet = Field(
        None,
        description="Arguments in `engine.args` that jobs may set beyond the plain ones: `NAME`, or `NAME:MODEL` for what runs code ([below](#engine-arguments)).",
    )
    allowed_remotes: Words = Field(
        (),
        description="Prefixes that addresses of remote engines must have. Empty: all are allowed.",
    )
    api_keys: Keys = Field(
        {},
        description="JSON object of base URL to API key. Each key goes to its own address alone.",
    )
    openai_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("openai_api_key", "OPENAI_API_KEY"),
        description="The key for the next address, and for no other.",
    )
    openai_base_url: str = Field(
        remotes.OPENAI,
        validation_alias=AliasChoices("openai_base_url", "OPENAI_BASE_URL"),
        description="The address that `OPENAI_API_KEY` is for.",
    )

    catalogs: Catalogs = Field(
        {},
        description="JSON object of name to properties of an Iceberg catalog, as pyiceberg has them: "
        '`{"lake": {"type": "rest", "uri": "https://…", "token": "…"}}` ([tables.md](tables.md#catalogs)).',
    )

    run_dir: Path | None = Field(
        None,
        description="Folder of the state files that probes read ([probes.md](probes.md)). Unset: no probes.",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of `/metrics` ([metrics.md](metrics.md)); 0 takes a free one. Unset: no metrics.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address of `/metrics`.")
    metrics_key: SecretStr | None = Field(
        None,
        min_length=1,
        description="Bearer token that a scrape must bring. Required beyond loopback.",
    )
    log_format: Literal["console", "json"] = Field(
        "console", description="`console` for people, `json` for one JSON object a line."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug`, `info`, `warning` or `error`."
    )

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

    @field_validator("catalogs", mode="before")
    @classmethod
    def _json_of_catalogs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            # Not chained, as above.
            raise ValueError("is no JSON object of name to properties") from None

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

    def catalog(self, name: str) -> dict[str, str] | None:
        """The properties of a catalog, secrets among them; None for a name that the operator has not given."""
        found = self.catalogs.get(name)
        if found is None:
            return None
        return {key: each.get_secret_value() for key, each in found.items()}

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
            if name == "catalogs":
                value = json.dumps({each: self.catalog(each) for each in value})
            value = value.get_secret_value() if isinstance(value, SecretStr) else value
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
            f"{phrase(mistake)}".removeprefix("NIGHTSHIFT_: ")
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


def trial_environment() -> dict[str, str]:
    """The environment of a process that reads foreign files and needs no settings: where its libraries lie, and
    packages, wherever this process has them from.
    """
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if "LD_LIBRARY_PATH" in os.environ:
        found["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return found


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
