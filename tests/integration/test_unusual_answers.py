"""Responses of remote servers that are not plain answers: what becomes of the row, and what it costs."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from nightshift.common.errors import EngineRefused, EngineUnavailable
from nightshift.common.settings import Settings
from nightshift.common.spec import EmbedTask, GenerateTask, OpenaiEngineSpec, RequestsTask, Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.openai.server import RetryPolicy
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Usage, Work
from tests.support.fleet import wait_until
from tests.support.misbehaving import CHAT, EMBEDDINGS, TRIES, Case, chat, choice
from tests.support.remote import Call, Remote, Reply, answered

QUICK = RetryPolicy(backoff_seconds=0.001, longest_backoff_seconds=0.002)
PATIENT = replace(QUICK, unusable_rows=1000)


@pytest.fixture(scope="module")
def server() -> Iterator[Remote]:
    with Remote().running() as server:
        yield server


@pytest.fixture
def remote(server: Remote) -> Remote:
    """The server, of which the test says what it returns; it has got no request yet."""
    server.calls.clear()
    return server


def loaded(remote: Remote, policy: RetryPolicy, **fields: Any) -> OpenaiEngine:
    given = {"backend": "openai", "model": "m", "base_url": remote.url, **fields}
    return OpenaiEngine(OpenaiEngineSpec.model_validate(given), Settings(), policy)


@pytest.fixture(scope="module")
def engine(server: Remote) -> Iterator[OpenaiEngine]:
    """An engine that never pauses a job; all tests share it, since a load costs more than their requests."""
    engine = loaded(server, PATIENT)
    yield engine
    engine.close()


def generate(**fields: Any) -> GenerateTask:
    return GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}", **fields})


def chats(*texts: str) -> list[Request]:
    return [
        Request(index, messages=[{"role": "user", "content": text}])
        for index, text in enumerate(texts)
    ]


def run(engine: OpenaiEngine, task: Task, requests: list[Request]) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    work = Work(task, requests, 60, found.__setitem__, resolved=engine.resolve(task))
    engine.start(work).result(60)
    return found


def check(case: Case, outcome: Outcome, remote: Remote) -> None:
    if isinstance(case.becomes, RowErrorKind):
        assert isinstance(outcome, Refusal), outcome
        assert outcome.kind is case.becomes, outcome
    else:
        assert isinstance(outcome, Answer), outcome
    assert len(remote.calls) == case.requests
    spent = (outcome.prompt_tokens, outcome.output_tokens, outcome.estimated_tokens)
    assert spent == tuple(case.requests * count for count in (*case.tokens, case.estimated))


@pytest.mark.parametrize("case", CHAT.values(), ids=CHAT)
def test_a_chat_completion_is_an_answer_or_a_row_error_and_each_request_counts(
    engine: OpenaiEngine, remote: Remote, case: Case
) -> None:
    remote.behave = lambda call: Reply(body=case.body)
    (outcome,) = run(engine, generate(), chats("a")).values()
    check(case, outcome, remote)
    if isinstance(outcome, Answer):
        assert outcome.columns["output"] == case.becomes


@pytest.mark.parametrize("case", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_an_embedding_is_a_vector_or_a_row_error_and_each_request_counts(
    engine: OpenaiEngine, remote: Remote, case: Case
) -> None:
    remote.behave = lambda call: Reply(body=case.body)
    task = EmbedTask.model_validate({"kind": "embed", "text": "{{ text }}"})
    (outcome,) = run(engine, task, [Request(0, text="a")]).values()
    check(case, outcome, remote)


@pytest.mark.parametrize(
    "reason", ["abort", "error", None, "content_filter", "length", "tool_calls"]
)
def test_the_beginning_of_a_longer_answer_never_fits_a_form(
    engine: OpenaiEngine, remote: Remote, reason: str | None
) -> None:
    remote.behave = lambda call: Reply(body=chat(choice("12", reason)))
    for form in (
        {"regex": "[0-9]+"},
        {"json_schema": {"type": "integer"}},
        {"choice": ["12", "123"]},
    ):
        (outcome,) = run(engine, generate(output=form), chats("a")).values()
        assert isinstance(outcome, Refusal), (form, outcome)


def test_thinking_parts_are_the_thought(engine: OpenaiEngine, remote: Remote) -> None:
    remote.behave = lambda call: Reply(body=CHAT["thought_parts"].body)
    (outcome,) = run(engine, generate(keep_reasoning=True), chats("a")).values()
    assert outcome.columns == {"output": "blue", "reasoning": "Sky."}


def test_choices_are_read_by_their_index(engine: OpenaiEngine, remote: Remote) -> None:
    names = ["a", "b", "c"]
    choices = [choice(name) | {"index": index} for index, name in enumerate(names)]
    remote.behave = lambda call: Reply(body=chat(*reversed(choices)))
    sampling = {"n": 3, "temperature": 0.5}
    (outcome,) = run(engine, generate(sampling=sampling), chats("a")).values()
    assert [each["output"] for each in outcome.columns["outputs"]] == names


def test_one_sample_that_was_not_finished_is_null_and_the_others_stay(
    engine: OpenaiEngine, remote: Remote
) -> None:
    choices = [choice("a"), choice("b", "abort") | {"index": 1}, choice("c") | {"index": 2}]
    remote.behave = lambda call: Reply(body=chat(*choices))
    sampling = {"n": 3, "temperature": 0.5}
    (outcome,) = run(engine, generate(sampling=sampling), chats("a")).values()
    assert [each and each["output"] for each in outcome.columns["outputs"]] == ["a", None, "c"]
    assert len(remote.calls) == 1


def test_an_answer_that_is_not_one_at_first_costs_both_requests(
    engine: OpenaiEngine, remote: Remote
) -> None:
    def behave(call: Call) -> Reply:
        return Reply(body=CHAT["abort" if call.number == 1 else "stop"].body)

    remote.behave = behave
    (outcome,) = run(engine, generate(), chats("a")).values()
    assert isinstance(outcome, Answer)
    assert (outcome.prompt_tokens, outcome.output_tokens) == (14, 6)


def test_an_error_of_the_server_counts_where_it_has_a_count(
    engine: OpenaiEngine, remote: Remote
) -> None:
    error = {"error": {"message": "no"}, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    remote.behave = lambda call: Reply(400, error)
    (outcome,) = run(engine, generate(), chats("a")).values()
    assert isinstance(outcome, Refusal)
    assert (outcome.prompt_tokens, outcome.output_tokens) == (7, 3)


def test_only_several_different_rows_in_a_row_without_an_answer_pause_the_job(
    remote: Remote,
) -> None:
    engine = loaded(remote, QUICK, concurrency=1)
    remote.behave = lambda call: Reply(body=b"<html>")
    for _ in range(QUICK.unusable_rows):  # the same row again and again
        (outcome,) = run(engine, generate(), chats("a")).values()
        assert isinstance(outcome, Refusal)
    remote.behave = lambda call: Reply(body=b"<html>") if call.text != "good" else answered(call)
    kinds = []
    for request in chats(*["a", "b", "c", "good"] * 3):
        kinds += map(type, run(engine, generate(), [request]).values())
    assert kinds == [Refusal, Refusal, Refusal, Answer] * 3
    remote.calls.clear()
    spent: list[Usage] = []
    rows: dict[int, Outcome] = {}
    work = Work(generate(), chats(*"abcde"), 60, rows.__setitem__, spend=spent.append)
    with pytest.raises(EngineRefused, match="5 rows in a row"):
        engine.start(work).result(60)
    assert len(rows) == QUICK.unusable_rows - 1
    # The row that pauses the job has no outcome, and its requests count nevertheless.
    counted = sum(each.prompt_tokens for each in [*rows.values(), *spent])
    assert counted == 9 * len(remote.calls) == 9 * TRIES * QUICK.unusable_rows
    engine.close()


def test_rows_without_an_answer_among_rows_with_one_pause_no_job_though_they_come_last(
    remote: Remote,
) -> None:
    """They are requested again behind all others, so they end one after the other."""
    engine = loaded(remote, QUICK, concurrency=4)
    bad = choice("12", "abort")
    remote.behave = lambda call: (
        Reply(body={"choices": [bad]}) if "bad" in call.text else answered(call)
    )
    texts = ["bad" if index % 5 == 0 else "good" for index in range(40)]
    found = run(engine, generate(), chats(*texts))
    refused = {index for index, each in found.items() if isinstance(each, Refusal)}
    assert (len(found), refused) == (40, set(range(0, 40, 5)))
    engine.close()


@pytest.mark.parametrize("end", ["timeout", "cancel"])
def test_a_request_whose_response_nobody_waits_for_counts_its_prompt_as_an_estimate(
    remote: Remote, end: str
) -> None:
    engine = loaded(remote, QUICK, concurrency=1)
    go = threading.Event()

    def behave(call: Call) -> Reply:
        if "slow" in call.text:
            go.wait(60)
        return answered(call)

    remote.behave = behave
    spent: list[Usage] = []
    rows: dict[int, Outcome] = {}
    seconds = 0.2 if end == "timeout" else 60
    work = Work(generate(), chats("slow " * 100), seconds, rows.__setitem__, spend=spent.append)
    batch = engine.start(work)
    if end == "cancel":
        wait_until(lambda: remote.calls, what="a request")
        batch.cancel()
        wait_until(lambda: spent, what="the usage")
    else:
        with suppress(EngineUnavailable):
            batch.result(60)
    go.set()
    found = [*rows.values(), *spent]
    counted = sum(each.prompt_tokens for each in found)
    assert counted >= 100, "four bytes are a token"
    assert sum(each.estimated_tokens for each in found) >= 100
    engine.close()


@pytest.mark.parametrize(
    ("path", "body", "response"),
    [
        ("/v1/embeddings", {"input": "a"}, {"data": []}),
        ("/v1/embeddings", {"input": ["a", "b"]}, {"data": [{"index": 0, "embedding": [1.0]}]}),
        ("/v1/embeddings", {"input": [1, 2]}, {"data": [{"index": 0}, {"index": 1}]}),
        ("/v1/responses", {"input": "a"}, {"status": "completed", "output": []}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            {"choices": [choice("12", "abort")]},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            {"choices": [choice("12", None)]},
        ),
    ],
)
def test_a_response_without_an_answer_is_an_error_with_the_clients_own_model(
    engine: OpenaiEngine, remote: Remote, path: str, body: Any, response: Any
) -> None:
    remote.behave = lambda call: Reply(body={**response, "model": "real-2024"})
    task = RequestsTask(kind="requests", endpoint=path, model_from="engine")
    request = Request(0, body={**body, "model": "team"})
    (outcome,) = run(engine, task, [request]).values()
    assert isinstance(outcome, Refusal)
    assert json.loads(outcome.columns["response"])["model"] == "team"


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ([1], "its JSON is not an object"),
        ("text", "its JSON is not an object"),
        ({}, "choices is missing"),
        ({"choices": None}, "its list of answers is missing"),
        ({"choices": {"index": 0}}, "its list of answers is missing"),
        ({"choices": ["text"]}, "a field has an unexpected type or value"),
        ({"choices": [{"finish_reason": "stop"}]}, "message is missing"),
        (
            {"choices": [{**choice("a", "stop"), "message": 3}]},
            "a field has an unexpected type or value",
        ),
    ],
)
def test_the_reason_names_what_the_response_lacks(
    engine: OpenaiEngine, remote: Remote, response: Any, reason: str
) -> None:
    remote.behave = lambda call: Reply(body=json.dumps(response).encode())
    (outcome,) = run(engine, generate(), chats("a")).values()
    assert isinstance(outcome, Refusal)
    assert f"the response has no answer ({reason})" in outcome.message


@pytest.mark.parametrize("index", [json.loads("Infinity"), "x", {"a": 1}, json.loads("NaN")])
def test_an_impossible_index_is_a_response_without_an_answer(
    engine: OpenaiEngine, remote: Remote, index: Any
) -> None:
    remote.behave = lambda call: Reply(
        body=json.dumps({"choices": [{**choice("a", "stop"), "index": index}]}).encode()
    )
    (outcome,) = run(engine, generate(), chats("a")).values()
    assert isinstance(outcome, Refusal)
    assert "the response has no answer" in outcome.message
    assert len(remote.calls) == TRIES


@pytest.mark.parametrize(
    ("model_from", "named", "sent", "returned"),
    [
        ("engine", "team", "m", "team"),
        ("engine", None, "m", "real-2024"),
        (None, "other", "other", "real-2024"),
        (None, None, "m", "real-2024"),
    ],
)
def test_the_engines_model_is_sent_and_the_requests_own_name_returned_where_the_spec_says_so(
    engine: OpenaiEngine,
    remote: Remote,
    model_from: Any,
    named: str | None,
    sent: str,
    returned: str,
) -> None:
    remote.behave = lambda call: answered(call, model="real-2024", half="\ud83d")
    task = RequestsTask(kind="requests", model_from=model_from)
    body = {"messages": [{"role": "user", "content": "a"}], **({"model": named} if named else {})}
    (outcome,) = run(engine, task, [Request(0, body=body)]).values()
    assert remote.calls[0].body["model"] == sent
    response = json.loads(outcome.columns["response"])
    assert (response["model"], response["half"]) == (returned, "\ud83d"), "the rest stays as it was"


BROKEN = [choice("blu", "abort")]


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        ("/v1/chat/completions", chat(choice()), 1),
        ("/v1/chat/completions", chat(choice(None, "tool_calls")), 1),
        ("/v1/chat/completions", chat(choice("", "content_filter")), 1),
        ("/v1/chat/completions", chat(*BROKEN), TRIES),
        ("/v1/chat/completions", {"error": {"message": "no"}}, TRIES),
        ("/v1/chat/completions", {"hello": 1}, TRIES),
        ("/v1/completions", {"choices": [{"text": "x", "finish_reason": None}]}, TRIES),
        ("/v1/completions", {"choices": [{"text": "x", "finish_reason": "stop"}]}, 1),
        ("/v1/responses", {"output": [{"type": "message"}], "status": "completed"}, 1),
        ("/v1/responses", {"output": [], "status": "incomplete"}, 1),
        ("/v1/responses", {"output": [], "status": "completed", "error": None}, TRIES),
        ("/v1/responses", {"output": [], "status": "failed"}, TRIES),
        ("/v1/responses", {"output": [], "status": "queued"}, TRIES),
        ("/v1/embeddings", {"data": [{"embedding": [1.0]}]}, 1),
        ("/v1/embeddings", {"object": "error"}, TRIES),
    ],
)
def test_a_response_is_passed_on_where_it_is_one_of_its_endpoint(
    engine: OpenaiEngine, remote: Remote, path: str, body: Any, requests: int
) -> None:
    remote.behave = lambda call: Reply(body=body)
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": path})
    (outcome,) = run(engine, task, [Request(0, body={"input": "a"})]).values()
    assert isinstance(outcome, Answer) is (requests == 1), outcome
    assert len(remote.calls) == requests
    if isinstance(outcome, Refusal):
        assert outcome.columns["status_code"] == 200
