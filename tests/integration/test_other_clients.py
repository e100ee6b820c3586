"""What other programs do to speak the Batch API: curl, instructor, and LiteLLM's proxy between a client and us."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from openai import OpenAI

from tests.integration.test_batch_api import create, door, line, lines_of, remote, upload  # noqa: F401
from tests.integration.test_official_clients import FLOWS, ran
from tests.support import own_venv
from tests.support.fleet import wait_until
from tests.support.remote import Call, Remote, Reply, answered
from tests.support.serve import Door, free_port

INSTRUCTOR = "1.17.0"

LITELLM = "1.108.7"

KEY = f"sk-{secrets.token_hex(32)}"
"""The proxy starts with a strong key alone."""

pytestmark = pytest.mark.slow


def test_curl(door: Door, tmp_path: Path) -> None:  # noqa: F811
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    rows = "".join(json.dumps(line(number, f"say {number}")) + "\n" for number in range(5))
    (tmp_path / "rows.jsonl").write_text(rows)
    door.worker()
    said = ran("sh", FLOWS / "flow.sh", door.url, cwd=tmp_path)
    assert [json.loads(each)["custom_id"] for each in said.splitlines()] == [
        f"r-{number}" for number in range(5)
    ]


def test_instructor(door: Door, remote: Remote, tmp_path: Path) -> None:  # noqa: F811
    def behave(call: Call) -> Reply:
        name = call.text.removeprefix("who is ")
        text = json.dumps({"name": name, "age": 7}) if name != "nobody" else "who?"
        reply = answered(call)
        reply.body["choices"][0]["message"]["content"] = text
        return reply

    remote.behave = behave
    home = own_venv.home(f"instructor-{INSTRUCTOR}", f"instructor=={INSTRUCTOR}")
    door.worker()
    flow = ("env", f"OPENAI_BASE_URL={door.url}", "OPENAI_API_KEY=none", home / "bin" / "python")
    ran(*flow, FLOWS / "flow_instructor.py", cwd=tmp_path)
    assert all("response_format" in call.body for call in remote.calls)


@pytest.fixture
def proxy(door: Door, tmp_path: Path) -> Iterator[str]:  # noqa: F811
    """The base URL of a proxy of LiteLLM before the server."""
    home = own_venv.home(f"litellm-{LITELLM}", f"litellm[proxy]=={LITELLM}")
    params = {"model": "openai/shout", "api_base": door.url, "api_key": "none"}
    model = {"model_name": "team", "litellm_params": params, "model_info": {"mode": "batch"}}
    (tmp_path / "litellm.yaml").write_text(yaml.safe_dump({"model_list": [model]}))
    port = free_port()
    told = ("--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port))
    with (tmp_path / "litellm.log").open("wb") as log:
        process = subprocess.Popen(
            [home / "bin" / "python", "-I", home / "bin" / "litellm", *told],
            cwd=tmp_path,
            env={
                **os.environ,
                "LITELLM_MASTER_KEY": KEY,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else one is asked of the internet
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "litellm.log").read_text()
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health/liveliness")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    try:
        wait_until(answers, what="an answer of LiteLLM's proxy")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_litellms_proxy(door: Door, proxy: str) -> None:  # noqa: F811
    client = OpenAI(base_url=proxy, api_key=KEY, default_headers={"x-litellm-model": "team"})
    door.worker()
    batch = create(client, upload(client, [line(number, f"say {number}") for number in range(5)]))
    ended = door.ended(client, batch.id)
    assert (ended.status, ended.request_counts.completed) == ("completed", 5)
    found = lines_of(client, ended.output_file_id)
    assert [each["custom_id"] for each in found] == [f"r-{number}" for number in range(5)]
    assert batch.id in {each.id for each in client.batches.list()}
