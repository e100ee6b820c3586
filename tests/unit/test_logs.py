"""JSON logs: whatever a process of the fleet has to say, each line is one JSON object."""

import json
import subprocess
import sys
from typing import Any

import pytest

from nightshift.common.logs import JSON_OF_VLLM
from nightshift.common.settings import Settings, child_environment

OURS = """
import logging, threading, warnings
import structlog
from nightshift.common import logs
from nightshift.common.settings import load_settings
logs.configure(load_settings(), worker_id="w-1")
log = structlog.get_logger("ours")
try:
    int("no\\nnumber")
except ValueError:
    log.exception("round_failed", path=object())
    logging.getLogger("celery.worker").exception("lost\\nconnection")
warnings.warn("careful\\nnow")
thread = threading.Thread(target=lambda: 1 / 0, name="beat")
thread.start()
thread.join()
raise RuntimeError("the end\\nof it")
"""

VLLM = """
import json, logging, logging.config, os, sys
if len(sys.argv) > 1:
    from nightshift.common import logs
    from nightshift.common.settings import load_settings
    logs.configure(load_settings(), worker_id=sys.argv[1])
with open(os.environ["VLLM_LOGGING_CONFIG_PATH"]) as file:
    logging.config.dictConfig(json.load(file))
logging.getLogger("vllm.engine").info("loading\\nweights")
logging.getLogger("vllm.engine").debug("too much")
logging.getLogger("torch").warning("slow kernel")
"""


def lines(code: str, *arguments: str) -> list[dict[str, Any]]:
    """What a process logs on standard error; it writes nothing to standard output."""
    environment = child_environment(Settings(log_format="json"), JSON_OF_VLLM)
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout == ""
    return [json.loads(line) for line in ended.stderr.splitlines()]


def test_tracebacks_warnings_and_lines_of_libraries_are_one_object_a_line() -> None:
    said = lines(OURS)
    assert [line["level"] for line in said] == ["error", "error", "warning", *["critical"] * 2]
    assert all(line["worker_id"] == "w-1" for line in said)
    ours, celery, warning, thread, end = said
    assert ours["event"] == "round_failed"
    assert "ValueError: invalid literal" in ours["exception"]
    assert (celery["logger"], celery["event"]) == ("celery.worker", "lost connection")
    assert "careful" in warning["event"]
    assert (thread["event"], thread["thread"]) == ("thread_crashed", "beat")
    assert "ZeroDivisionError" in thread["exception"]
    assert end["event"] == "process_crashed"
    assert end["exception"].endswith("RuntimeError: the end\nof it")


def test_an_operators_own_settings_of_vllms_logging_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def given() -> dict[str, str]:
        environment = child_environment(Settings(), JSON_OF_VLLM, TQDM_DISABLE="1")
        assert environment["TQDM_DISABLE"] == "1"
        return {name: value for name, value in environment.items() if name in JSON_OF_VLLM}

    for name in JSON_OF_VLLM:
        monkeypatch.delenv(name, raising=False)
    assert given() == JSON_OF_VLLM
    for name, value in (
        ("VLLM_LOGGING_CONFIG_PATH", "/own.json"),
        ("VLLM_CONFIGURE_LOGGING", "0"),  # vLLM would refuse our path with it
    ):
        with monkeypatch.context() as own:
            own.setenv(name, value)
            assert given() == {name: value}


def test_vllm_logs_like_its_child_in_the_child_and_in_processes_of_its_own() -> None:
    in_child = lines(VLLM, "w-1")
    assert [(line["event"], line["worker_id"]) for line in in_child] == [
        ("loading weights", "w-1"),
        ("slow kernel", "w-1"),
    ]
    in_core = lines(VLLM)
    assert [(line["event"], line["process"]) for line in in_core] == [
        ("loading weights", "MainProcess"),
        ("slow kernel", "MainProcess"),
    ]
    assert all(line["pid"] for line in in_core)
