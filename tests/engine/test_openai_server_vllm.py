"""The remote engine against vLLM's own server of the OpenAI API, started once, on loopback."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pyarrow.dataset as ds
import pytest

from common.settings import Settings
from common.spec import GenerateTask, RequestsTask
from common.spec import OpenaiEngine as OpenaiSpec
from common.states import RowErrorKind
from tests.engine.conftest import MODEL
from tests.engine.contract import ask
from tests.examples.conftest import Example, example
from tests.integration.fleet import is_alive, logs, tree, wait_until
from worker.engines.openai.engine import OpenaiEngine
from worker.engines.protocol import Answer, Refusal, Request

__all__ = ["example"]

KEY = "sk-loopback"
SENTIMENTS = ["positive", "neutral", "negative"]

pytestmark = pytest.mark.timeout(290)


@dataclass(frozen=True)
class Server:
    url: str
    settings: Settings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    options = {
        "--model": str(MODEL),
        "--served-model-name": "my-model",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--api-key": KEY,
        "--max-model-len": "512",
        "--max-num-seqs": "16",
        "--kv-cache-memory-bytes": str(256 * 2**20),
        "--structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"),
                *(word for pair in options.items() for word in pair),
            ],
            stdout=output,
            stderr=output,
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
        except httpx2.TransportError:
            time.sleep(0.2)
            return False

    try:
        wait_until(answers, seconds=250, what="vLLM's server")
        url = f"http://127.0.0.1:{port}/v1"
        yield Server(url, Settings.model_validate({"api_keys": {url: KEY}}))
    finally:
        members = tree(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for member in members:
            if is_alive(member):
                member.kill()


@pytest.fixture(scope="module")
def engine(server: Server) -> Iterator[OpenaiEngine]:
    spec = OpenaiSpec(backend="openai", model="my-model", base_url=server.url)
    engine = OpenaiEngine.load(spec, server.settings)
    yield engine
    engine.close()


def generate(engine: OpenaiEngine, text: str, **fields: Any) -> Answer | Refusal:
    task = GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}", **fields})
    request = Request(0, messages=[{"role": "user", "content": text}], is_plain_prompt=True)
    return ask(engine, task, [request])[0]


def output(outcome: Answer | Refusal) -> str:
    assert isinstance(outcome, Answer), outcome
    return str(outcome.columns["output"])


def test_the_example_runs_against_it(example: Callable[[str], Example], server: Server) -> None:
    remote = example("remote")
    remote.environment["NIGHTSHIFT_API_KEYS"] = json.dumps({server.url: KEY})
    remote.nightshift("run", "job.yaml", "--base-url", server.url)
    rows = ds.dataset(remote.folder / "out").to_table().sort_by("row_index").to_pylist()
    assert len(rows) == 12, logs(remote.folder)
    assert {row["output"] for row in rows} <= set(SENTIMENTS)
    assert (rows[0]["output"], rows[1]["output"]) == ("positive", "negative")
    assert all(row["prompt_tokens"] > 5 and row["output_tokens"] > 0 for row in rows)
    remote.nightshift("verify", "remote")


def test_the_forms_of_an_answer_hold(engine: OpenaiEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": SENTIMENTS}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    sampling = {"max_tokens": 60}
    asked = {"sampling": sampling, "output": {"json_schema": schema}}
    assert json.loads(output(generate(engine, "x", **asked)))["mood"] in SENTIMENTS
    regex = generate(engine, "x", sampling=sampling, output={"regex": "[a-c]{3,5}"})
    assert set(output(regex)) <= set("abc")
    grammar = generate(engine, "x", sampling=sampling, output={"grammar": 'root ::= "yes" | "no"'})
    assert output(grammar) in ("yes", "no")


def test_its_refusals_are_told_apart(engine: OpenaiEngine) -> None:
    long = generate(engine, "word " * 5_000)
    assert isinstance(long, Refusal)
    assert long.kind is RowErrorKind.TOO_LONG
    wrong = generate(engine, "x", output={"grammar": "this is no grammar ::="})
    assert isinstance(wrong, Refusal)
    assert wrong.kind is RowErrorKind.REFUSED
    assert wrong.message.startswith("400: ")


def test_sampled_rows_repeat_and_differ_from_each_other(engine: OpenaiEngine) -> None:
    task = GenerateTask.model_validate(
        {
            "kind": "generate",
            "prompt": "{{ text }}",
            "sampling": {"temperature": 2, "max_tokens": 24, "ignore_eos": True, "seed": 7},
        }
    )
    message = [{"role": "user", "content": "same text"}]
    requests = [Request(index, messages=message, is_plain_prompt=True) for index in range(3)]
    first, second = (ask(engine, task, requests) for _ in range(2))
    assert first == second
    assert len({output(outcome) for outcome in first.values()}) > 1  # type: ignore[arg-type]
    assert {outcome.output_tokens for outcome in first.values()} == {24}


def test_lines_of_a_batch_file_come_back_as_the_server_wrote_them(engine: OpenaiEngine) -> None:
    task = RequestsTask.model_validate({"kind": "requests"})
    message = [{"role": "user", "content": "It broke at once."}]
    good = {"messages": message, "max_tokens": 3, "ignore_eos": True, "logprobs": True}
    bodies = [good, {"messages": message, "max_tokens": -5}]
    outcomes = ask(engine, task, [Request(n, body=body) for n, body in enumerate(bodies)])
    answer, refused = outcomes[0], outcomes[1]
    assert isinstance(answer, Answer)
    response = json.loads(answer.columns["response"])
    assert response["choices"][0]["logprobs"]["content"]
    assert response["usage"]["completion_tokens"] == answer.output_tokens == 3
    assert answer.columns["request_id"]
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("400: ")
