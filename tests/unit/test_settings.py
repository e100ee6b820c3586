"""Settings come from the environment, are checked once and name what is wrong."""

import os
import traceback
from pathlib import Path

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.settings import (
    Settings,
    child_environment,
    function_environment,
    load_settings,
    python_path,
    visible_gpus,
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("NIGHTSHIFT_", "OPENAI_")):
            monkeypatch.delenv(name)


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings()
    assert settings.database_url is None
    assert settings.allowed_modules == ()
    assert settings.environment() == {}


def test_lists_are_split_by_commas_and_paths_by_colons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_MODULES", "rules, models ,,")
    monkeypatch.setenv("NIGHTSHIFT_CALLABLE_PATHS", "/one:/two")
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_ROOTS", "s3://bucket/,/data/")
    settings = load_settings()
    assert settings.allowed_modules == ("rules", "models")
    assert settings.callable_paths == ("/one", "/two")
    assert settings.allowed_roots == ("s3://bucket/", "/data/")


def test_a_heartbeat_comes_at_least_twice_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_LEASE_SECONDS", "19")
    with pytest.raises(BadInput, match="heartbeat_seconds must be at most half of lease_seconds"):
        load_settings()
    monkeypatch.setenv("NIGHTSHIFT_HEARTBEAT_SECONDS", "9.5")
    assert load_settings().heartbeat_seconds == 9.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE_SECONDS", "soon"),
        ("LEASE_SECONDS", "0"),
        ("POLL_SECONDS", "-1"),
        ("READ_CACHE_BYTES", "many"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"NIGHTSHIFT_{name}", value)
    with pytest.raises(BadInput, match=f"NIGHTSHIFT_{name}: ") as refused:
        load_settings()
    assert "\n" not in str(refused.value)


def test_every_mistake_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_LEASE_SECONDS", "soon")
    monkeypatch.setenv("NIGHTSHIFT_LOG_LEVEL", "loud")
    with pytest.raises(BadInput, match=r"NIGHTSHIFT_LEASE_SECONDS: .*NIGHTSHIFT_LOG_LEVEL: "):
        load_settings()


def test_what_is_passed_in_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_POLL_SECONDS", "5")
    assert load_settings(poll_seconds=1).poll_seconds == 1


def test_settings_cannot_be_changed_after_they_were_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().poll_seconds = 1  # type: ignore[misc]


def test_a_child_process_reads_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(
        database_url="postgresql://localhost/ledger",
        home=Path("elsewhere"),
        lease_seconds=4,
        heartbeat_seconds=2,
        allowed_modules=("rules", "models"),
        callable_paths=("/one", "/two"),
        log_format="json",
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


def test_a_child_gets_no_setting_that_its_parent_overrode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_POLL_SECONDS", "5")
    monkeypatch.setenv("KEPT", "yes")
    child = child_environment(Settings(poll_seconds=2), EXTRA="1")
    assert "NIGHTSHIFT_POLL_SECONDS" not in child
    assert (child["KEPT"], child["EXTRA"]) == ("yes", "1")


def test_a_function_gets_the_basic_variables_and_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PATH", "LC_ALL", "WANTED", "AWS_SECRET_ACCESS_KEY", "NIGHTSHIFT_HOME"):
        monkeypatch.setenv(name, "here")
    found = function_environment(load_settings(function_env=("WANTED", "MISSING")))
    assert {"PATH", "LC_ALL", "WANTED"} <= found.keys()
    assert not {"AWS_SECRET_ACCESS_KEY", "NIGHTSHIFT_HOME", "MISSING"} & found.keys()


def test_no_setting_of_ours_can_be_named_for_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_FUNCTION_ENV", "TZ,NIGHTSHIFT_DATABASE_URL")
    with pytest.raises(BadInput, match="NIGHTSHIFT_DATABASE_URL is a setting of Nightshift"):
        load_settings()


def test_folders_of_pythonpath_are_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "here", "/there"]))
    assert python_path() == (str(Path("here").resolve()), "/there")


def test_a_key_belongs_to_one_address_however_it_is_written() -> None:
    settings = load_settings(
        api_keys={"https://One.example/v1/": "sk-one", "http://127.0.0.1:8000/v1": "sk-two"},
        openai_api_key="sk-openai",
        openai_base_url="",
    )

    def key(url: str) -> str | None:
        found = settings.api_key(url)
        return None if found is None else found.get_secret_value()

    assert key("https://one.example:443/v1") == "sk-one"
    assert key("http://127.0.0.1:8000/v1/") == "sk-two"
    assert key("https://api.openai.com/v1") == "sk-openai"
    for other in (
        "http://one.example/v1",
        "https://one.example/v2",
        "https://one.example/v1/more",
        "https://one.example.evil.net/v1",
        "https://api.openai.com.evil.net/v1",
        "http://api.openai.com/v1",
    ):
        assert key(other) is None
    with pytest.raises(BadInput, match="without a user name"):
        key("https://one.example@evil.net/v1")


def test_the_key_of_openai_goes_where_its_own_variable_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://proxy.example/v1")
    settings = load_settings()
    assert settings.api_key("https://api.openai.com/v1") is None
    found = settings.api_key("https://proxy.example/v1")
    assert found is not None
    assert found.get_secret_value() == "sk-mine"


def test_keys_reach_a_child_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_API_KEYS", '{"https://one.example/v1": "sk-one"}')
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    settings = load_settings()
    assert "sk-" not in repr(settings) + str(settings)
    child = child_environment(settings)
    assert child["NIGHTSHIFT_API_KEYS"] == '{"https://one.example/v1": "sk-one"}'
    assert child["OPENAI_API_KEY"] == "sk-mine"
    assert not [name for name in child if name.startswith("NIGHTSHIFT_OPENAI")]
    for name, value in child.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


@pytest.mark.parametrize("value", ["sk-secret", '["sk-secret"]', '{"https://x/v1": ["sk-secret"]}'])
def test_keys_that_cannot_be_read_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_API_KEYS", value)
    with pytest.raises(BadInput, match="NIGHTSHIFT_API_KEYS") as refused:
        load_settings()
    shown = "".join(traceback.format_exception(refused.value))
    assert "sk-secret" not in shown


def test_gpus_are_counted_as_cuda_counts_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container that has two of a machine's eight GPUs sees them as 0 and 1."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvidia3", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus(tmp_path) == ("0", "1")
    assert visible_gpus(tmp_path / "none") == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert visible_gpus(tmp_path) == ("GPU-a", "GPU-b")


def test_a_key_reaches_a_child_process_and_no_printed_settings() -> None:
    settings = Settings(metrics_port=9464, metrics_host="10.0.0.7", metrics_key="secret")
    assert settings.environment() == {
        "NIGHTSHIFT_METRICS_PORT": "9464",
        "NIGHTSHIFT_METRICS_HOST": "10.0.0.7",
        "NIGHTSHIFT_METRICS_KEY": "secret",
    }
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("port", ["-1", "65536", "many"])
def test_a_port_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_METRICS_PORT", port)
    with pytest.raises(BadInput, match="NIGHTSHIFT_METRICS_PORT"):
        load_settings()


def test_a_metrics_key_that_is_empty_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file gives it whose variable is not set."""
    monkeypatch.setenv("NIGHTSHIFT_METRICS_KEY", "")
    assert load_settings().metrics_key is None
