"""The remote engine against a server that misbehaves, over real HTTP."""

import io
import json
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from email.utils import formatdate
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from nightshift.common import remotes, storage
from nightshift.common.errors import (
    EngineLoadFailed,
    EngineRefused,
    EngineUnavailable,
    StorageUnavailable,
)
from nightshift.common.ledger.fleet.outages import Kind
from nightshift.common.settings import Settings, load_settings
from nightshift.common.spec import (
    EmbedTask,
    GenerateTask,
    OpenaiEngineSpec,
    RequestsTask,
    TaskSection,
)
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines import images
from nightshift.worker.engines.images import Image
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.openai.server import RetryPolicy
from nightshift.worker.engines.openai.usage import estimated_tokens
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Work
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.telemetry.waits import Waits
from tests.support.fleet import wait_until
from tests.support.remote import Call, Remote, Reply, answered, refused

QUICK = RetryPolicy(
    tries=4,
    limited_tries=6,
    backoff_seconds=0.02,
    longest_backoff_seconds=0.1,
    outage_seconds=0.5,
    probe_seconds=0.5,
    probe_valid_seconds=0.0,
)


@pytest.fixture
def remote() -> Iterator[Remote]:
    with Remote().running() as server:
        yield server


@pytest.fixture
def load(remote: Remote) -> Iterator[Callable[..., OpenaiEngine]]:
    """Loads engines that end with the test."""
    loaded: list[OpenaiEngine] = []

    def one(settings: Settings | None = None, **fields: Any) -> OpenaiEngine:
        given = {"backend": "openai", "model": "m", "base_url": remote.url, **fields}
        spec = OpenaiEngineSpec.model_validate(given)
        loaded.append(OpenaiEngine(spec, settings or Settings(), QUICK))
        return loaded[-1]

    yield one
    for engine in loaded:
        engine.close()


def generate(**fields: Any) -> GenerateTask:
    return GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}", **fields})


def chats(*texts: str) -> list[Request]:
    return [
        Request(index, messages=[{"role": "user", "content": text}], is_plain_prompt=True)
        for index, text in enumerate(texts)
    ]


def ask(
    engine: OpenaiEngine, requests: list[Request], task: TaskSection | None = None, *, seconds=60.0
) -> list[Outcome]:
    found: dict[int, Outcome] = {}

    def emit(position: int, outcome: Outcome) -> None:
        assert position not in found, "one outcome a row"
        found[position] = outcome

    work = Work(task or generate(), requests, seconds, emit)  # type: ignore[arg-type]
    engine.start(work).result(60)
    assert sorted(found) == list(range(len(requests)))
    return [found[position] for position in range(len(requests))]


def output(outcome: Outcome) -> Any:
    assert isinstance(outcome, Answer), outcome
    return outcome.columns["output"]


def refusal(outcome: Outcome) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


def when(text: str, *replies: Reply) -> Callable[[Call], Reply]:
    """The replies to a text in turn, the last of them for ever; every other text is answered."""

    def behave(call: Call) -> Reply:
        if call.text != text:
            return answered(call)
        return replies[min(call.number, len(replies)) - 1]

    return behave


def then_answered(*replies: Reply) -> Callable[[Call], Reply]:
    """So many bad replies to each text, then its answer."""

    def behave(call: Call) -> Reply:
        return replies[call.number - 1] if call.number <= len(replies) else answered(call)

    return behave


def test_each_row_has_its_own_answer_and_the_servers_count_of_tokens(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    engine = load(concurrency=4)
    four = threading.Barrier(4)

    def behave(call: Call) -> Reply:
        four.wait(60)  # nobody is answered before four are there
        return answered(call)

    remote.behave = behave
    outcomes = ask(engine, chats(*(f"row {n}" for n in range(40))))
    assert [output(each) for each in outcomes] == [f"ROW {n}" for n in range(40)]
    assert {(each.prompt_tokens, each.output_tokens) for each in outcomes} == {(7, 3)}
    assert remote.most_at_once == 4
    assert engine.stalled_seconds() == 0


def test_a_request_says_the_sampling_and_form_of_the_task_and_the_engines_own_fields(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    engine = load(args={"service_tier": "flex", "temperature": None})
    sampling = {"max_tokens": 9, "temperature": 0.5, "top_k": 3, "stop": ["\n"], "seed": 1}
    ask(engine, chats("x"), generate(sampling=sampling))
    body = remote.calls[-1].body
    assert body.pop("seed") > 0
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 9,
        "top_k": 3,
        "stop": ["\n"],
        "service_tier": "flex",
    }
    schema = {"type": "object"}
    ask(engine, chats("{}"), generate(output={"json_schema": schema}))
    assert remote.calls[-1].body["response_format"]["json_schema"]["schema"] == schema
    ask(engine, chats("x"), generate(output={"choice": ["X", "Y"]}))
    assert remote.calls[-1].body["structured_outputs"] == {"choice": ["X", "Y"]}


def test_an_answer_that_does_not_fit_is_a_refusal_with_its_tokens(
    load: Callable[..., OpenaiEngine],
) -> None:
    fits, wrong = ask(load(), chats("yes", "maybe"), generate(output={"choice": ["YES", "NO"]}))
    assert output(fits) == "YES"
    assert refusal(wrong).kind is RowErrorKind.INVALID_OUTPUT
    assert wrong.output_tokens == 3


def test_an_answer_that_does_not_fit_is_asked_for_again_as_the_task_says(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    def behave(call: Call) -> Reply:
        said = "YES" if call.number == 3 else "perhaps"
        choice = {"message": {"content": said}, "finish_reason": "stop"}
        return answered(call, choices=[choice])

    remote.behave = behave
    output_form = {"choice": ["YES", "NO"], "on_invalid": {"retries": 2, "temperature": 0.3}}
    (outcome,) = ask(load(), chats("x"), generate(output=output_form))
    assert output(outcome) == "YES"
    assert (outcome.prompt_tokens, outcome.output_tokens) == (21, 9)
    assert [call.body["temperature"] for call in remote.calls] == [0, 0.3, 0.3]
    assert len({call.body.get("seed") for call in remote.calls}) == 3


def test_an_answer_held_on_retry_is_asked_for_without_its_form_first(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    def behave(call: Call) -> Reply:
        said = "YES" if "structured_outputs" in call.body else "I think so"
        return answered(call, choices=[{"message": {"content": said}, "finish_reason": "stop"}])

    remote.behave = behave
    output_form = {"choice": ["YES", "NO"], "hold": "on_retry"}
    (outcome,) = ask(load(), chats("x"), generate(output=output_form))
    assert output(outcome) == "YES"
    assert ["structured_outputs" in call.body for call in remote.calls] == [False, True]


@pytest.mark.parametrize(
    "trouble",
    [
        [refused(500, "oh")] * 3,
        [refused(429, "slow down", retry_after="0.1")],
        [refused(429, "slow down", retry_after_ms="50")],
        [refused(429, "slow down", retry_after=formatdate(0, usegmt=True))],
        [refused(503, "starting"), refused(502, "no upstream")],
        [Reply(body={"choices": []}, cut=True)],
        [Reply(body=b"<html>hello</html>")],
        [Reply(body={"choices": []})],
        [Reply(body={"choices": [{"message": {"content": 7}}]})],
        [Reply(500, b"\xff not even text")],
    ],
    ids=lambda replies: f"{replies[0].status} {replies[0].headers or replies[0].body}"[:40],
)
def test_trouble_that_passes_costs_no_row(
    load: Callable[..., OpenaiEngine], remote: Remote, trouble: list[Reply]
) -> None:
    remote.behave = then_answered(*trouble)
    assert [output(each) for each in ask(load(), chats("a", "b"))] == ["A", "B"]
    assert len(remote.calls) == 2 * (len(trouble) + 1)


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (refused(400, "bad temperature"), RowErrorKind.REFUSED, "400: bad temperature"),
        (refused(404, "no model m"), RowErrorKind.REFUSED, "404: no model m"),
        (Reply(422, {"detail": "no"}), RowErrorKind.REFUSED, "422: no"),
        (refused(400, "x", "context_length_exceeded"), RowErrorKind.TOO_LONG, "400: x"),
        (
            refused(400, "This model's maximum context length is 512 tokens."),
            RowErrorKind.TOO_LONG,
            "maximum context",
        ),
        (refused(500, "this row alone"), RowErrorKind.REFUSED, "500: this row alone"),
        (refused(403, "blocked"), RowErrorKind.REFUSED, "403: blocked"),
        (refused(429, "request too large"), RowErrorKind.REFUSED, "429: request too large"),
        (Reply(cut=True), RowErrorKind.REFUSED, "no answer from the server"),
    ],
)
def test_a_row_that_the_server_will_not_have_fails_alone(
    load: Callable[..., OpenaiEngine],
    remote: Remote,
    reply: Reply,
    kind: RowErrorKind,
    says: str,
) -> None:
    remote.behave = when("bad", reply)
    good, bad, fine = ask(load(), chats("good", "bad", "fine"))
    assert (output(good), output(fine)) == ("GOOD", "FINE")
    assert refusal(bad).kind is kind
    assert says in refusal(bad).message
    # Without a neighbour too, though then only a probe can tell.
    assert refusal(ask(load(), chats("bad"))[0]).kind is kind


@pytest.mark.slow
def test_a_hanging_request_ends_with_its_rows_time_and_the_others_go_on(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    remote.behave = when("hang", Reply(hang=True))
    good, hung = ask(load(), chats("good", "hang"), seconds=6.0)
    assert output(good) == "GOOD"
    assert refusal(hung).kind is RowErrorKind.TIMEOUT


@pytest.mark.slow
def test_waiting_for_the_server_to_let_us_is_not_a_rows_own_time(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    remote.behave = then_answered(refused(429, "later", retry_after="4.5"))
    assert output(ask(load(), chats("a"), seconds=4.0)[0]) == "A"


@pytest.mark.parametrize("hint", [{"retry-after": "0.5"}, {}], ids=["hint", "no hint"])
def test_a_429_holds_back_every_row_of_the_child(
    load: Callable[..., OpenaiEngine], remote: Remote, hint: dict[str, str]
) -> None:
    at: dict[str, float] = {}

    def behave(call: Call) -> Reply:
        at.setdefault(call.text, time.monotonic())
        if call.text == "first" and call.number == 1:
            return Reply(429, {"error": {"message": "no"}}, hint)
        return answered(call)

    remote.behave = behave
    ask(load(concurrency=1), chats("first", "second"))
    assert at["second"] - at["first"] >= (0.5 if hint else 0.01)


def test_a_limit_of_which_nothing_remains_is_waited_out_before_anything_is_refused(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    at: list[float] = []
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "500ms"}

    def behave(call: Call) -> Reply:
        at.append(time.monotonic())
        reply = answered(call)
        return Reply(200, reply.body, spent if len(at) == 1 else {})

    remote.behave = behave
    ask(load(concurrency=1), chats("a", "b"))
    assert at[1] - at[0] >= 0.5


def test_a_server_that_is_away_gives_the_batch_back_and_keeps_what_it_answered(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    engine = load()
    first = threading.Event()
    remote.behave = lambda call: answered(call) if call.text == "a" else refused(503, "away")
    found: dict[int, Outcome] = {}

    def emit(position: int, outcome: Outcome) -> None:
        found[position] = outcome
        first.set()

    future = engine.start(Work(generate(), chats("a", "b", "c"), 60, emit))  # type: ignore[arg-type]
    assert first.wait(60)
    with pytest.raises(EngineUnavailable, match=r"answers no request: 503: away"):
        future.result(60)
    assert list(found) == [0]
    remote.behave = answered
    assert len(ask(engine, chats("b", "c"))) == 2


def test_a_server_that_only_hangs_is_away_and_no_row_is_blamed(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    remote.behave = lambda call: Reply(hang=True)
    future = load().start(Work(generate(), chats("a", "b"), 0.3, pytest.fail))  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable, match="no answer within row_timeout_seconds"):
        future.result(60)


def test_a_page_of_a_proxy_is_no_sign_that_the_server_lives(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    engine = load()

    def behave(call: Call) -> Reply:
        # The probe gets the page; the row's own requests an error each.
        page = Reply(body=b"<html>We will be back soon</html>")
        return page if call.text == "Hi" else refused(503, "away")

    remote.behave = behave
    future = engine.start(Work(generate(), chats("a", "b"), 60, pytest.fail))  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable, match="503: away"):
        future.result(60)


@pytest.mark.parametrize(
    "reply",
    [
        refused(401, "Incorrect API key provided: sk-secret."),
        refused(429, "You exceeded your current quota", "insufficient_quota"),
    ],
    ids=["key", "quota"],
)
def test_a_key_or_account_that_is_refused_to_all_wants_a_person(
    load: Callable[..., OpenaiEngine], remote: Remote, reply: Reply
) -> None:
    engine = load(Settings.model_validate({"api_keys": {remote.url: "sk-secret"}}))
    remote.behave = lambda call: reply
    future = engine.start(Work(generate(), chats("a", "b"), 60, pytest.fail))  # type: ignore[arg-type]
    with pytest.raises(EngineRefused, match="correct the key or the account") as refused_all:
        future.result(60)
    assert "sk-secret" not in str(refused_all.value)


def test_a_stop_ends_what_is_under_way_and_the_engine_serves_others(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    engine = load(concurrency=2)
    remote.behave = when("hang", Reply(hang=True))
    work = Work(generate(), chats(*["hang"] * 8), 60, pytest.fail)  # type: ignore[arg-type]
    future = engine.start(work)
    wait_until(lambda: len(remote.calls) >= 2, what="two requests")
    work.stop()
    with pytest.raises(CancelledError):
        future.result(60)
    assert output(ask(engine, chats("y"))[0]) == "Y"
    assert remote.texts().count("hang") == 2


@pytest.mark.parametrize(
    ("usage", "counted", "estimated"),
    [
        (None, (9, 1), 10),
        ("none", (9, 1), 10),
        ({}, (9, 1), 10),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (9, 1), 10),
        ({"prompt_tokens": -4, "completion_tokens": "many"}, (9, 1), 10),
        ({"prompt_tokens": 2**40, "completion_tokens": True}, (9, 1), 10),
        ({"prompt_tokens": float("nan"), "completion_tokens": [3]}, (9, 1), 10),
        ({"prompt_tokens": 5, "completion_tokens": 0}, (5, 1), 1),
        ({"prompt_tokens": 5, "total_tokens": 9}, (5, 4), 0),
        ({"prompt_tokens": 5}, (5, 1), 1),
        ({"prompt_tokens": "5", "completion_tokens": "3"}, (5, 3), 8),
        ({"prompt_tokens": 5.0, "completion_tokens": 2.5}, (5, 3), 3),
        ({"input_tokens": 5, "output_tokens": 3}, (5, 3), 0),
    ],
)
def test_a_count_that_is_missing_or_impossible_is_estimated_and_marked(
    load: Callable[..., OpenaiEngine],
    remote: Remote,
    usage: Any,
    counted: tuple[int, int],
    estimated: int,
) -> None:
    remote.behave = lambda call: answered(call, usage=usage)
    (outcome,) = ask(load(), chats("a"))
    assert (outcome.prompt_tokens, outcome.output_tokens) == counted
    assert outcome.estimated_tokens == estimated


def test_a_row_that_cannot_be_sent_at_all_fails_alone(load: Callable[..., OpenaiEngine]) -> None:
    half = json.loads('"\\ud800"')
    good, bad = ask(load(), chats("good", half))
    assert output(good) == "GOOD"
    assert "cannot be sent" in refusal(bad).message
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": "/v1/completions"})
    bodies = [{"prompt": half}, {"prompt": "x", "n": float("nan")}, {"prompt": "x", "n": "many"}]
    outcomes = ask(load(), [Request(n, body=body) for n, body in enumerate(bodies)], task)
    assert [type(outcome) for outcome in outcomes] == [Refusal, Refusal, Answer]


def test_a_model_that_refuses_says_so_in_the_row(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I would rather not"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    remote.behave = lambda call: answered(call, choices=[choice])
    outcome = refusal(ask(load(), chats("a"))[0])
    assert (outcome.kind, outcome.output_tokens) == (RowErrorKind.REFUSED, 3)
    assert "I would rather not" in outcome.message


def test_embeddings_are_float32_cut_and_scaled_as_the_task_says(
    load: Callable[..., OpenaiEngine],
) -> None:
    def embed(**fields: Any) -> Any:
        task = EmbedTask.model_validate({"kind": "embed", "text": "{{ text }}", **fields})
        (outcome,) = ask(load(), [Request(0, text="abc")], task)
        assert outcome.prompt_tokens == 7
        return outcome

    def vector(outcome: Any) -> Any:
        return outcome.columns["embedding"]

    plain = vector(embed())
    assert plain.dtype == np.float32
    assert plain.tolist() == [3.0, 4.0, 3.0]
    np.testing.assert_allclose(vector(embed(dimensions=2)), [0.6, 0.8], rtol=1e-6)
    assert vector(embed(dimensions=2, normalize=False)).tolist() == [3.0, 4.0]
    assert np.linalg.norm(vector(embed(normalize=True))) == pytest.approx(1)
    assert vector(embed(dtype="float16")).dtype == np.float16
    assert "fewer than task.dimensions 9" in embed(dimensions=9).message


@pytest.mark.parametrize(("number", "dtype"), [(1e6, "float16"), (1e40, "float32")])
def test_an_embedding_that_its_type_cannot_hold_is_refused(
    load: Callable[..., OpenaiEngine], remote: Remote, number: float, dtype: str
) -> None:
    remote.behave = lambda call: Reply(body={"data": [{"embedding": [number, 1.0]}]})
    task = EmbedTask.model_validate({"kind": "embed", "text": "{{ text }}", "dtype": dtype})
    (outcome,) = ask(load(), [Request(0, text="abc")], task)
    assert refusal(outcome).kind is RowErrorKind.INVALID_OUTPUT


@pytest.mark.parametrize("what", ["chat/completions", "completions", "embeddings"])
def test_a_request_of_a_batch_file_is_sent_as_it_stands(
    load: Callable[..., OpenaiEngine], remote: Remote, what: str
) -> None:
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": f"/v1/{what}"})
    own = {"input" if what == "embeddings" else "prompt": "x", "logit_bias": {"5": -1}}
    if what == "chat/completions":
        own = {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": -1}}
    bodies = [own, {**own, "model": "other"}, {**own, "user": "bad"}]
    remote.behave = lambda call: (
        refused(400, "no such user") if call.body.get("user") else answered(call)
    )
    plain, other, bad = ask(
        load(args={"temperature": 1}),
        [Request(n, body=body) for n, body in enumerate(bodies)],
        task,
    )
    sent = [call.body for call in remote.calls]
    assert {**own, "model": "m"} in sent
    assert {**own, "model": "other"} in sent
    assert {call.path for call in remote.calls} == {f"/v1/{what}"}
    assert isinstance(plain, Answer)
    assert isinstance(other, Answer)
    assert plain.columns["status_code"] == 200
    assert json.loads(plain.columns["response"])["usage"]["prompt_tokens"] == 7
    assert plain.prompt_tokens == 7
    assert refusal(bad).message == "400: no such user"
    assert refusal(bad).columns["status_code"] == 400
    assert json.loads(refusal(bad).columns["response"])["error"]["message"] == "no such user"


def test_a_key_goes_to_its_own_address_alone_and_no_variable_of_the_client_goes_anywhere(
    load: Callable[..., OpenaiEngine], remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-mine")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Mine: secret-header")
    ask(load(load_settings(api_keys={"https://elsewhere.example/v1": "sk-elsewhere"})), chats("a"))
    for headers in (remote.looks[-1], remote.calls[-1].headers):
        said = json.dumps(headers)
        assert headers["authorization"] == "Bearer EMPTY"
        for secret in ("sk-", "mine", "secret-header"):
            assert secret not in said
    ask(load(load_settings(api_keys={f"{remote.url}/": "sk-here"})), chats("a"))
    assert remote.calls[-1].headers["authorization"] == "Bearer sk-here"
    ask(load(load_settings(openai_base_url=remote.url)), chats("a"))
    assert remote.calls[-1].headers["authorization"] == "Bearer sk-of-openai"


@pytest.mark.parametrize(
    ("look", "says"),
    [
        (refused(401, "wrong key sk-here"), "refuses this worker, which has the key for it"),
        (refused(403, "not from here"), "refuses this worker"),
        (Reply(307, {}, {"location": "http://127.0.0.1:1/v1/models"}), "sends its callers else"),
    ],
)
def test_an_address_that_does_not_serve_us_is_one_sentence_at_load(
    load: Callable[..., OpenaiEngine], remote: Remote, look: Reply, says: str
) -> None:
    remote.look = look
    settings = Settings.model_validate({"api_keys": {remote.url: "sk-here"}})
    with pytest.raises(EngineLoadFailed, match=says) as failed:
        load(settings)
    assert "sk-here" not in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    "look",
    [Reply(hang=True), Reply(cut=True), refused(503, "starting")],
    ids=["hang", "cut", "503"],
)
def test_a_server_that_is_away_at_load_is_an_outage_of_the_batches(
    load: Callable[..., OpenaiEngine], remote: Remote, look: Reply
) -> None:
    remote.look, remote.behave = look, lambda call: look
    engine = load()
    future = engine.start(Work(generate(), chats("a"), 0.3, pytest.fail))  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable, match="answers no request"):
        future.result(60)
    remote.behave = answered
    assert output(ask(engine, chats("a"))[0]) == "A"


def test_a_server_without_a_list_of_models_is_good_enough(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    remote.look = refused(404, "no such path")
    assert output(ask(load(), chats("a"))[0]) == "A"


def test_what_the_operator_does_not_allow_or_provide_is_said_at_load(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    with pytest.raises(EngineLoadFailed, match="NIGHTSHIFT_ALLOWED_REMOTES"):
        load(Settings.model_validate({"allowed_remotes": "https://api.openai.com"}))
    with pytest.raises(EngineLoadFailed, match="NIGHTSHIFT_BROKER_URL"):
        load(Settings(), requests_per_minute=5)
    assert not remote.looks


LOOK = generate(
    prompt=None,
    messages=[{"role": "user", "content": [{"type": "image", "column": "photo"}]}],
)


def shows(*values: bytes | str) -> list[Request]:
    """A row for each image, with a text before it."""
    text = {"type": "text", "text": "What is it?"}
    return [
        Request(
            index,
            messages=[
                {"role": "user", "content": [text, {"type": "image", "image": Image(value)}]}
            ],
        )
        for index, value in enumerate(values)
    ]


def drawn() -> bytes:
    buffer = io.BytesIO()
    Picture.new("RGB", (3, 2)).save(buffer, "PNG")
    return buffer.getvalue()


A_WORD = Reply(body={"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})


def test_images_are_sent_as_data_urls_and_a_bad_one_is_refused_alone(
    remote: Remote, load: Callable[..., OpenaiEngine]
) -> None:
    def shown(call: Call) -> Reply:
        parts = call.body["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url"]
        url = parts[1]["image_url"]["url"]
        # An image must not eat the fleet's tokens by the length of its base64.
        assert estimated_tokens(call.body) < 3000
        message = {"role": "assistant", "content": url[:22]}
        return Reply(body={"choices": [{"message": message, "finish_reason": "stop"}]})

    remote.behave = shown
    buffer = io.BytesIO()
    Picture.effect_noise((200, 200), 80).save(buffer, "PNG")
    good, bad = ask(load(), shows(buffer.getvalue(), b"no image"), LOOK)
    assert isinstance(good, Answer)
    assert good.columns["output"] == "data:image/png;base64,"
    assert isinstance(bad, Refusal)
    assert bad.kind is RowErrorKind.RENDER_ERROR
    assert len(remote.calls) == 1


def test_a_store_of_images_that_is_away_gives_back_its_rows_and_no_others(
    load: Callable[..., OpenaiEngine],
    remote: Remote,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(drawn())
    remote.behave = lambda call: A_WORD
    engine = load()
    found: dict[int, Outcome] = {}

    def away(uri: str, offset: int, length: int) -> bytes:
        raise StorageUnavailable(f"{uri} cannot be read: the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "read_range", away)
        patched.setattr(images, "READ_TRIES", 1)
        rows = shows(drawn(), str(path), b"no image", drawn())
        future = engine.start(Work(LOOK, rows, 60, found.__setitem__))
        with pytest.raises(StorageUnavailable, match="the store is away"):
            future.result(60)
    assert {type(outcome) for outcome in found.values()} <= {Answer, Refusal}
    assert 1 not in found
    assert isinstance(ask(engine, shows(str(path)), LOOK)[0], Answer)


def test_only_rows_that_are_under_way_hold_their_images(
    load: Callable[..., OpenaiEngine], remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Url(str):
        """A string that can be watched."""

    made: list[weakref.ref[Url]] = []
    most: list[int] = []

    def data_url(image: Image) -> str:
        url = Url("data:image/png;base64,AAAA")
        made.append(weakref.ref(url))
        return url

    def behave(call: Call) -> Reply:
        most.append(sum(each() is not None for each in made))
        return refused(503, "away") if len(most) <= 8 else A_WORD

    monkeypatch.setattr(Image, "data_url", data_url)
    remote.behave = behave
    ask(load(concurrency=2), shows(*[b""] * 8), LOOK)
    assert len(most) >= 16
    assert max(most) <= 2


def test_tokens_are_estimated_of_the_text_and_not_of_the_bytes_of_an_image() -> None:
    def body(*parts: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 10}

    text = {"type": "text", "text": "x" * 400}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    assert 110 < estimated_tokens(body(text)) < 150
    tracemalloc.start()
    assert 1000 < estimated_tokens(body(text, image)) - estimated_tokens(body(text)) < 1050
    assert tracemalloc.get_traced_memory()[1] < 10**5
    tracemalloc.stop()
    assert estimated_tokens({"input": [1, 2, 3]}) < 10


def test_a_name_that_leads_to_a_blocked_address_is_asked_nothing(
    load: Callable[..., OpenaiEngine], remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may be answered in another way at each question: the peer of the connection counts."""
    monkeypatch.setattr(remotes, "BLOCKED", [ip_network("127.0.0.0/8")])
    with pytest.raises(EngineLoadFailed, match="link-local or metadata"):
        load()
    assert remote.looks == []
    assert remote.calls == []


def test_a_row_names_no_model_that_the_operator_does_not_allow(
    load: Callable[..., OpenaiEngine], remote: Remote
) -> None:
    task = RequestsTask.model_validate({"kind": "requests", "endpoint": "/v1/completions"})
    bodies = [{"prompt": "a"}, {"prompt": "b", "model": "m-2"}, {"prompt": "c", "model": "evil"}]
    requests = [Request(n, body=body) for n, body in enumerate(bodies)]
    one, two, evil = ask(load(Settings(allowed_models=("m", "m-*"))), requests, task)
    assert isinstance(one, Answer)
    assert isinstance(two, Answer)
    assert "NIGHTSHIFT_ALLOWED_MODELS" in refusal(evil).message
    assert sorted(remote.texts()) == ["a", "b"]


PATIENT = RetryPolicy(tries=10**6, limited_tries=10**6, backoff_seconds=0.02, outage_seconds=600)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refused(503, "we are down"), Kind.SERVER),
        (refused(429, "slow down"), Kind.RATE),
        (Reply(429, {"error": {"message": "later"}}, {"retry-after": "4"}), Kind.RATE),
    ],
    ids=["away", "limited", "limited for a while"],
)
def test_what_the_server_lets_rows_wait_for_is_told_until_a_row_has_its_answer(
    remote: Remote, reply: Reply, kind: Kind
) -> None:
    is_back = threading.Event()
    remote.behave = lambda call: answered(call) if is_back.is_set() else reply
    spec = OpenaiEngineSpec.model_validate(
        {"backend": "openai", "model": "m", "base_url": remote.url}
    )
    waits = Waits()
    engine = OpenaiEngine(spec, Settings(), PATIENT)
    try:
        work = Work(generate(), chats("a", "b"), 60.0, lambda *_: None, recorder=Recorder(waits))  # type: ignore[arg-type]
        future = engine.start(work)
        wait_until(lambda: kind in [each.kind for each in waits.lasting()], what=f"a wait: {kind}")
        told = next(each for each in waits.lasting() if each.kind is kind)
        assert told.job_id is None, "every job of the engine waits"
        assert remote.url in told.why
        is_back.set()
        future.result(60)
        assert waits.lasting() == []
    finally:
        engine.close()
