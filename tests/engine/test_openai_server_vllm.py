"""The remote engine against vLLM's own server of the OpenAI API, on loopback."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from nightshift.common.settings import Settings
from nightshift.common.spec import GenerateTask, OpenaiEngineSpec, RequestsTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.protocol import Answer, Engine, Refusal, Request
from tests.engine.contract import ask
from tests.support.example import Example
from tests.support.fleet import logs, wait_until
from tests.support.models import MODEL

if TYPE_CHECKING:
    import uvicorn

    from nightshift.worker.engines.vllm.engine import VllmEngine

KEY = "sk-loopback"
SENTIMENTS = ["positive", "neutral", "negative"]


@dataclass(frozen=True)
class Server:
    url: str
    settings: Settings


@pytest.fixture(scope="module")
def server(vllm_engine: Engine) -> Iterator[Server]:
    """vLLM's server as its command line builds it, over the model that is loaded already."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    assert isinstance(vllm_engine, VllmEngine)
    loop = vllm_engine._loop_thread.loop
    made = asyncio.run_coroutine_threadsafe(served(vllm_engine), loop).result()
    serving = asyncio.run_coroutine_threadsafe(made.serve(), loop)
    wait_until(lambda: made.started or serving.done(), what="vLLM's server")
    port = made.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    yield Server(url, Settings.model_validate({"api_keys": {url: KEY}}))
    made.should_exit = True
    serving.result(60)


async def served(engine: "VllmEngine") -> "uvicorn.Server":
    import uvicorn
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    said = ["--model", str(MODEL), "--served-model-name", "my-model", "--api-key", KEY]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(said)
    args.structured_outputs_config = engine.llm.vllm_config.structured_outputs_config
    tasks = await engine.llm.get_supported_tasks()
    app = build_app(args, tasks, engine.llm.model_config)
    await init_app_state(engine.llm, app.state, args, tasks)
    # Its start would only freeze the heap of this process for the garbage collector.
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="warning")
    return uvicorn.Server(config)


@pytest.fixture(scope="module")
def engine(server: Server) -> Iterator[OpenaiEngine]:
    spec = OpenaiEngineSpec(backend="openai", model="my-model", base_url=server.url)
    engine = OpenaiEngine(spec, server.settings)
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
