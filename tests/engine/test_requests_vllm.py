"""OpenAI requests on the real vLLM engine: what a body asks for, and what its server refuses."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.common.spec import GenerateTask, RequestsTask, VllmEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Refusal, Request, Work
from tests.engine.contract import lent
from tests.support.models import ARGUMENTS, THINKING_MODEL

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def ask(
    engine: Engine, bodies: list[dict[str, Any]], endpoint: str = CHAT, seconds: float = 100
) -> list[Outcome]:
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": endpoint})
    outcomes: dict[int, Outcome] = {}
    requests = [Request(index, body=body) for index, body in enumerate(bodies)]
    engine.start(Work(task, requests, seconds, outcomes.__setitem__)).result()
    return [outcomes[position] for position in range(len(bodies))]


def chat(text: str = "I love it.", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def answered(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Answer), outcome
    assert outcome.columns["status_code"] == 200
    assert outcome.columns["request_id"]
    body: dict[str, Any] = json.loads(outcome.columns["response"])
    assert outcome.prompt_tokens == body["usage"]["prompt_tokens"] > 0
    assert outcome.output_tokens == body["usage"]["completion_tokens"]
    return body


def test_every_field_of_a_body_means_what_it_says(vllm_engine: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    sampled = {"temperature": 2.0, "max_tokens": 20, "ignore_eos": True, "min_tokens": 20}
    plain, several, shaped, one, same, other = map(
        answered,
        ask(
            vllm_engine,
            [
                chat(max_tokens=4, temperature=0, model="gpt-x"),
                chat(n=2, logprobs=True, top_logprobs=2, max_completion_tokens=3, ignore_eos=True),
                chat(response_format=form, max_tokens=60),
                chat(seed=1, **sampled),
                chat(seed=1, **sampled),
                chat(seed=2, **sampled),
            ],
        ),
    )
    assert plain["object"] == "chat.completion"
    assert plain["model"] == "gpt-x"
    assert plain["choices"][0]["message"]["content"] == "positive"
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert len(several["choices"][0]["logprobs"]["content"]) == 3
    assert len(several["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert several["usage"]["completion_tokens"] == 6
    assert json.loads(shaped["choices"][0]["message"]["content"]) == {"a": "x"}
    texts = [body["choices"][0]["message"]["content"] for body in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]


def test_completions_take_texts_and_token_ids(vllm_engine: Engine) -> None:
    one, two = map(
        answered,
        ask(
            vllm_engine,
            [
                {"prompt": "I love it", "max_tokens": 2, "echo": True, "ignore_eos": True},
                {"prompt": [[5, 6], [7]], "max_tokens": 2, "ignore_eos": True},
            ],
            TEXT,
        ),
    )
    assert one["choices"][0]["text"].startswith("I love it")
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"] == {**two["usage"], "prompt_tokens": 3, "completion_tokens": 4}


def test_responses_answer_as_the_servers_own_do(vllm_engine: Engine) -> None:
    """What a response says of tokens has names of its own."""
    fields = {"temperature": 0, "max_output_tokens": 4}
    plain, listed = ask(
        vllm_engine,
        [
            {"input": "I love it.", "model": "gpt-x", **fields},
            {"input": [{"role": "user", "content": "I love it."}], **fields},
        ],
        "/v1/responses",
    )
    for outcome in (plain, listed):
        assert isinstance(outcome, Answer), outcome
        body = json.loads(outcome.columns["response"])
        assert (body["object"], body["status"]) == ("response", "completed")
        assert body["output"][-1]["content"][0]["text"] == "positive"
        assert outcome.prompt_tokens == body["usage"]["input_tokens"] > 0
        assert outcome.output_tokens == body["usage"]["output_tokens"] > 0
    assert isinstance(plain, Answer)
    assert json.loads(plain.columns["response"])["model"] == "gpt-x"


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        (chat("word " * 900), 400, RowErrorKind.TOO_LONG, "maximum context length is 512"),
        (chat("word " * 200_000), 400, RowErrorKind.TOO_LONG, "maximum context length is 512"),
        (chat(max_tokens=600), 400, RowErrorKind.REFUSED, "max_tokens"),
        (chat(temperature=-1), 400, RowErrorKind.REFUSED, "temperature must be non-negative"),
        (chat(temperature="hot"), 400, RowErrorKind.REFUSED, "temperature: Input should be a val"),
        (chat("a\ud800b"), 400, RowErrorKind.REFUSED, "TextEncodeInput"),
        (chat(n=129), 400, RowErrorKind.REFUSED, "asks for 129 sequences"),
        ({"messages": []}, 400, RowErrorKind.REFUSED, "empty conversation"),
        ({}, 400, RowErrorKind.REFUSED, "messages: Field required"),
    ],
)
def test_what_the_server_refuses_is_the_rows_error_with_its_status(
    vllm_engine: Engine, body: dict[str, Any], status: int, kind: RowErrorKind, says: str
) -> None:
    refused, neighbour = ask(vllm_engine, [body, chat(max_tokens=2)])
    assert isinstance(refused, Refusal)
    assert refused.kind is kind
    assert says in refused.message
    assert refused.columns["status_code"] == status
    error = json.loads(refused.columns["response"])["error"]
    assert error["code"] == status
    assert says in error["message"]
    answered(neighbour)


IMAGE = "data:image/png;base64,AAAA"


def refusal_of(body: dict[str, Any], endpoint: str = CHAT) -> str:
    """Why the body is refused before it reaches a model; empty where it is not."""
    from nightshift.worker.engines.vllm.requests import Requests, Serving

    outcomes: dict[int, Outcome] = {}
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": endpoint})
    work = Work(task, [Request(0, body=body)], 600, outcomes.__setitem__)
    Requests(cast(Serving, None), task).prepare(work)
    refused = outcomes.get(0)
    return refused.message if isinstance(refused, Refusal) else ""


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/meta", "file:///etc/passwd", " data:x", "HTTPS://a.example/b"]
)
@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
def test_no_address_that_a_row_names_is_fetched(kind: str, url: str) -> None:
    """Each form of a part that vLLM's parser takes, after text and in every kind of chat."""
    forms: list[Any] = [
        {"type": kind, kind: {"url": url}},
        {kind: url},
        {kind: {"url": url}, "uuid": "u"},
        {"type": "input_image", "image_url": url},
    ]
    for form in forms:
        content = [{"type": "text", "text": "see"}, form]
        messages = [{"role": "user", "content": "x"}, {"role": "user", "content": content}]
        assert "are data: URLs" in refusal_of({"messages": messages})
        for body in ({"messages": messages}, {"messages": [messages]}, {"input": messages}):
            assert "are data: URLs" in refusal_of(body, EMBEDDINGS)
        called = {"type": "function_call_output", "call_id": "c", "output": content}
        for given in (messages, [called]):
            assert "are data: URLs" in refusal_of({"input": given}, "/v1/responses")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "uuid": "u"},
        {"type": "image_url", "image_url": {"url": IMAGE}, "uuid": "u"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}, "uuid": "u"},
    ],
)
def test_no_row_asks_for_the_media_of_another_by_their_uuid(part: dict[str, Any]) -> None:
    """Under a uuid that a row names, vLLM gives whatever media an earlier row had under that uuid."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]
    assert "names media of other rows" in refusal_of({"messages": messages})
    for body in ({"messages": messages}, {"input": messages}):
        assert "names media of other rows" in refusal_of(body, EMBEDDINGS)
    assert "names media of other rows" in refusal_of({"input": messages}, "/v1/responses")


def test_data_urls_and_the_word_in_other_places_are_good() -> None:
    part = {"type": "image_url", "image_url": {"url": IMAGE}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    schema = {"type": "object", "properties": {"image_url": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    messages = [{"role": "user", "content": [part, sound]}]
    assert not refusal_of({"messages": messages, "response_format": form})
    assert not refusal_of(chat("http://a.example/b"))


@pytest.mark.parametrize(
    ("endpoint", "body", "count"),
    [
        (CHAT, chat(n=128), 0),
        (CHAT, chat(n=16_384), 16_384),
        (TEXT, {"prompt": ["x"] * 64, "n": 2}, 0),
        (TEXT, {"prompt": ["x"] * 65, "n": 2}, 130),
        (TEXT, {"prompt": [[1, 2]] * 129}, 129),
        (TEXT, {"prompt": [1] * 500, "n": 2}, 0),
        (EMBEDDINGS, {"input": ["x"] * 2048}, 0),
        (EMBEDDINGS, {"input": ["x"] * 2049}, 2049),
        (EMBEDDINGS, {"input": [1] * 5000}, 0),
        (EMBEDDINGS, {"messages": [chat()["messages"]] * 2049}, 2049),
    ],
)
def test_one_row_asks_for_a_bounded_number_of_sequences(
    endpoint: str, body: dict[str, Any], count: int
) -> None:
    said = refusal_of(body, endpoint)
    assert f"asks for {count} sequences" in said if count else not said


def test_an_endpoint_that_the_model_does_not_have_is_refused(vllm_engine: Engine) -> None:
    (refused,) = ask(vllm_engine, [{"input": "x"}], EMBEDDINGS)
    assert isinstance(refused, Refusal)
    assert refused.columns["status_code"] == 501
    assert "the model has no" in refused.message


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (chat(max_tokens=480, ignore_eos=True), CHAT),
        ({"prompt": ["x", "y"], "max_tokens": 480, "ignore_eos": True}, TEXT),
    ],
)
def test_a_row_over_its_deadline_is_a_timeout(
    vllm_engine: Engine, body: dict[str, Any], endpoint: str
) -> None:
    (late,) = ask(vllm_engine, [body], endpoint, seconds=0.1)
    assert isinstance(late, Refusal)
    assert late.kind is RowErrorKind.TIMEOUT
    answered(*ask(vllm_engine, [chat(max_tokens=2)]))


def test_a_stop_ends_the_work_without_an_outcome(vllm_engine: Engine) -> None:
    outcomes: dict[int, Outcome] = {}
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": CHAT})
    requests = [Request(n, body=chat(max_tokens=480, ignore_eos=True)) for n in range(40)]
    work = Work(task, requests, 600, outcomes.__setitem__)
    future = vllm_engine.start(work)
    work.stop()
    with pytest.raises(CancelledError):
        future.result(60)
    assert not outcomes


def test_requests_and_prompts_share_an_engine(vllm_engine: Engine) -> None:
    prompts = GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}"})
    outcomes: dict[int, Outcome] = {}
    message = [{"role": "user", "content": "I love it."}]
    rows = [Request(n, messages=message, is_plain_prompt=True) for n in range(20)]
    generated = vllm_engine.start(Work(prompts, rows, 100, outcomes.__setitem__))
    for outcome in ask(vllm_engine, [chat(max_tokens=4, temperature=0)] * 20):
        assert answered(outcome)["choices"][0]["message"]["content"] == "positive"
    generated.result()
    assert len(outcomes) == 20


def answered_by_server(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, args: dict[str, Any], usage: dict[str, Any]
) -> Answer:
    """The answer of a server in place of vLLM's; its details of the prompt's tokens are there only
    where the server's arguments ask for them.
    """
    from nightshift.worker.engines.vllm import requests
    from nightshift.worker.engines.vllm.model import Model

    async def respond(body: object) -> requests.JSONResponse:
        return requests.JSONResponse({"usage": usage})

    async def init_app_state(llm: object, state: Any, arguments: Any, tasks: object) -> None:
        if not arguments.enable_prompt_tokens_details and "prompt_tokens_details" in usage:
            usage["prompt_tokens_details"] = None
        state.openai_serving_chat = SimpleNamespace(create_chat_completion=respond)
        state.openai_serving_responses = SimpleNamespace(create_responses=respond)

    async def tasks() -> list[str]:
        return []

    monkeypatch.setattr(requests, "init_app_state", init_app_state)
    config = SimpleNamespace(structured_outputs_config=None)
    llm = cast(
        Any,
        SimpleNamespace(vllm_config=config, get_supported_tasks=tasks, get_tokenizer=lambda: None),
    )
    spec = VllmEngineSpec(backend="vllm", model="m", args=args)
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": endpoint})
    handler = requests.Requests(requests.Serving(Model(llm, None, 128), spec), task)
    prompt = requests.ParsedBody(None, None)
    outcome, _ = asyncio.run(handler.run(Request(0), prompt))
    assert isinstance(outcome, Answer)
    return outcome


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({}, None),
        ({"enable_prompt_tokens_details": False}, None),
        ({"enable_prompt_tokens_details": True}, {"cached_tokens": 48}),
    ],
)
def test_cached_tokens_count_and_stand_in_an_answer_only_where_the_spec_asks(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], shown: dict[str, int] | None
) -> None:
    usage = {"prompt_tokens": 60, "prompt_tokens_details": {"cached_tokens": 48}}
    answer = answered_by_server(monkeypatch, CHAT, args, usage)
    assert (answer.prompt_tokens, answer.cached_tokens) == (60, 48)
    body = json.loads(answer.columns["response"])
    assert body["usage"] == {"prompt_tokens": 60, "prompt_tokens_details": shown}


def test_cached_tokens_of_a_response_count(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"input_tokens": 60, "input_tokens_details": {"cached_tokens": 48}}
    answer = answered_by_server(monkeypatch, "/v1/responses", {}, usage)
    assert answer.cached_tokens == 48
    assert json.loads(answer.columns["response"])["usage"] == usage


def test_embeddings_are_asked_of_a_pooling_model(vllm_embedder: Engine) -> None:
    one, two = map(
        answered,
        ask(vllm_embedder, [{"input": "hello"}, {"input": ["hello", "a cat"]}], EMBEDDINGS),
    )
    assert one["object"] == "list"
    (alone,) = (each["embedding"] for each in one["data"])
    assert len(alone) == 384
    assert sum(number * number for number in alone) == pytest.approx(1, abs=1e-3)
    assert [each["index"] for each in two["data"]] == [0, 1]
    assert two["data"][0]["embedding"] == pytest.approx(alone, abs=1e-3)
    assert two["data"][1]["embedding"] != pytest.approx(alone, abs=1e-2)


@pytest.fixture(scope="module")
def opens_thoughts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The model of examples/thinking under a template that opens the thought, as DeepSeek-R1's does."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    folder = tmp_path_factory.mktemp("opens") / "model"
    shutil.copytree(THINKING_MODEL, folder)
    config = folder / "tokenizer_config.json"
    told = json.loads(config.read_text())
    before = "assistant\n' }}"
    assert told["chat_template"].count(before) == 1
    told["chat_template"] = told["chat_template"].replace(before, "assistant\n<think>\n' }}")
    config.write_text(json.dumps(told))
    args = {**ARGUMENTS, "reasoning_parser": "deepseek_r1"}
    spec = VllmEngineSpec(backend="vllm", model=str(folder), args=args)
    yield from lent(lambda: VllmEngine.load(spec, None))


def test_thoughts_are_counted_that_the_template_opens(opens_thoughts: Engine) -> None:
    texts = ["The lamp is sturdy.", "It broke after a day, and the handle is flimsy."]
    system = {"role": "system", "content": "Name the sentiment of the review."}
    bodies = [
        {
            "messages": [system, {"role": "user", "content": text}],
            "max_completion_tokens": limit,
            "temperature": 0,
            "logprobs": True,
        }
        for text in texts
        for limit in (100, 3)
    ]
    for outcome in ask(opens_thoughts, bodies):
        body = answered(outcome)
        (choice,) = body["choices"]
        tokens = [each["token"] for each in choice["logprobs"]["content"]]
        spent = tokens.index("</think>") if "</think>" in tokens else len(tokens)
        assert choice["message"]["reasoning"]
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == spent
        assert isinstance(outcome, Answer)
        assert outcome.reasoning_tokens == spent
