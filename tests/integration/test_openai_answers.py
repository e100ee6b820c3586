"""Answers of remote servers in columns: thoughts, samples, numbers, and what the model's template is told."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nightshift.common.settings import Settings
from nightshift.common.spec import GenerateTask, OpenaiEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Work
from tests.support.remote import Call, Remote, Reply

Choice = dict[str, Any]
LABEL = {"choice": ["positive", "negative"]}


@pytest.fixture
def remote() -> Iterator[Remote]:
    with Remote().running() as server:
        yield server


@pytest.fixture
def ask(remote: Remote) -> Iterator[Callable[..., Outcome]]:
    """The outcome of one row, whose answer has these choices."""
    spec = OpenaiEngineSpec.model_validate(
        {"backend": "openai", "model": "m", "base_url": remote.url}
    )
    engine = OpenaiEngine(spec, Settings())

    def one(
        *choices: Choice,
        thoughts: int | None = None,
        row: Any = None,
        resolved: Any = None,
        behave: Any = None,
        **fields: Any,
    ) -> Any:
        def answer(_: Call) -> Reply:
            usage: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
            if thoughts is not None:
                usage["completion_tokens_details"] = {"reasoning_tokens": thoughts}
            return Reply(body={"id": "c", "choices": list(choices), "usage": usage})

        remote.behave = behave or answer
        task = GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}", **fields})
        told: dict[int, Outcome] = {}
        given = {"messages": [{"role": "user", "content": "I love it"}], **(row or {})}
        work = Work(
            task,
            [Request(0, **given)],
            60,
            told.__setitem__,
            resolved=dict(engine.resolve(task)) if resolved is None else resolved,
        )
        engine.start(work).result(60)
        return told[0]

    yield one
    engine.close()


def says(content: str | None, reason: str = "stop", **fields: Any) -> Choice:
    message = {"role": "assistant", "content": content, **fields}
    return {"index": 0, "message": message, "finish_reason": reason}


@pytest.mark.parametrize(
    ("choice", "answer", "thought"),
    [
        (says("positive", reasoning="They love it."), "positive", "They love it."),
        (says("positive", reasoning_content="They love it."), "positive", "They love it."),
        (says("<think>They love it.</think>\n\npositive"), "positive", "They love it."),
        (says("They love it.\n</think>\n\npositive"), "positive", "They love it."),
        (says("<think>a</think>positive", reasoning="They"), "positive", "They\na"),
        (says("positive</think>", reasoning="They"), "positive", "They"),
        (says("[THINK]They love it.[/THINK]positive"), "positive", "They love it."),
        (says("positive", reasoning=None), "positive", None),
        (says("positive", reasoning=""), "positive", None),
    ],
)
def test_a_thought_is_a_column_of_its_own_wherever_the_server_puts_it(
    ask: Callable[..., Outcome], choice: Choice, answer: str, thought: str | None
) -> None:
    for fields in ({}, {"output": LABEL}):
        outcome = ask(choice, keep_reasoning=True, **fields)
        assert isinstance(outcome, Answer), outcome
        assert outcome.columns["output"] == answer
        assert outcome.columns["reasoning"] == thought
    assert "reasoning" not in ask(choice).columns


@pytest.mark.parametrize(
    ("text", "thinking", "answer", "thought"),
    [
        ("The tag </think> ends a thought.", None, "The tag </think> ends a thought.", None),
        ("The tag <think> begins one.", None, "The tag <think> begins one.", None),
        ("They love it.</think>positive", None, "They love it.</think>positive", None),
        ("They love it.</think>positive", "auto", "positive", "They love it."),
        ("They love it.</think>positive", "on", "positive", "They love it."),
        ("They love it.</think>\n\npositive", "off", "They love it.</think>\n\npositive", None),
        ("<think>They</think>positive", "off", "positive", "They"),
        ("Use <think> and then </think>.", None, "Use <think> and then </think>.", None),
    ],
)
def test_a_marker_amid_an_answer_is_a_word_of_it_unless_thoughts_are_asked_for(
    ask: Callable[..., Outcome], text: str, thinking: str | None, answer: str, thought: str | None
) -> None:
    fields: dict[str, Any] = {} if thinking is None else {"thinking": thinking}
    if thinking != "off":
        fields["keep_reasoning"] = True
    outcome = ask(says(text), **fields)
    assert outcome.columns["output"] == answer
    if thinking != "off":
        assert outcome.columns["reasoning"] == thought


def test_a_job_of_before_is_not_parted(ask: Callable[..., Outcome]) -> None:
    text = "<think>They love it.</think>\n\npositive"
    outcome = ask(says(text, reasoning="They"), resolved={})
    assert outcome.columns["output"] == text


@pytest.mark.parametrize(
    "choice", [says(None, reasoning="They love it."), says("<think>They love it.")]
)
def test_a_thought_without_an_answer_is_no_empty_answer(
    ask: Callable[..., Outcome], choice: Choice
) -> None:
    outcome = ask(choice, keep_reasoning=True)
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.INVALID_OUTPUT
    assert outcome.message == "the model ended its answer inside its thinking"
    assert outcome.columns["reasoning"] == "They love it."


@pytest.mark.parametrize("count", [1, 3])
def test_samples_that_a_server_does_not_return_are_requested_one_by_one(
    ask: Callable[..., Outcome], remote: Remote, count: int
) -> None:
    def behave(call: Call) -> Reply:
        samples = count if "n" in call.body else 1
        usage = {"prompt_tokens": 7, "completion_tokens": 2 * samples}
        return Reply(body={"choices": [says("positive")] * samples, "usage": usage})

    fields = {"output": LABEL, "vote": "choice", "sampling": {"n": 4, "temperature": 0.7}}
    outcome = ask(behave=behave, **fields)
    assert isinstance(outcome, Answer)
    assert outcome.columns["vote_share"] == 1.0
    assert [call.body.get("n") for call in remote.calls] == [4] + [None] * (4 - count)
    assert len({call.body["seed"] for call in remote.calls}) == len(remote.calls)
    assert (outcome.prompt_tokens, outcome.output_tokens) == (7 * len(remote.calls), 8)
    remote.calls.clear()
    ask(behave=behave, **fields)
    # A server that ignored n once is not asked for it again.
    assert [call.body.get("n") for call in remote.calls] == [None] * 4 if count == 1 else [4, None]


def test_a_refused_request_counts_its_tokens_once(
    ask: Callable[..., Outcome], remote: Remote
) -> None:
    def refuse(_: Call) -> Reply:
        return Reply(
            400, {"error": {"message": "no", "type": "error", "param": None, "code": None}}
        )

    outcome = ask(behave=refuse, sampling={"n": 4, "temperature": 0.7})
    assert isinstance(outcome, Refusal)
    assert outcome.message.startswith("none of 4 samples has an answer; the first: ")
    assert (outcome.prompt_tokens, outcome.output_tokens) == (0, 0)


def test_the_tokens_of_a_thought_are_those_that_the_server_told(
    ask: Callable[..., Outcome],
) -> None:
    choice = says("positive", reasoning="They love it.")
    assert ask(choice, thoughts=5).reasoning_tokens == 5
    assert ask(choice).reasoning_tokens == 0


@pytest.mark.parametrize(
    "choice",
    [
        says(None, "length", reasoning="They lo"),
        says("", "length", reasoning_content="They lo"),
        says("<think>They lo", "length"),
    ],
)
def test_a_thought_that_is_cut_leaves_no_answer_and_names_the_number_to_raise(
    ask: Callable[..., Outcome], choice: Choice
) -> None:
    outcome = ask(choice, keep_reasoning=True, sampling={"max_tokens": 77})
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TRUNCATED
    assert "task.sampling.max_tokens, which is 77 here" in outcome.message
    assert outcome.columns["reasoning"] == "They lo"


def test_samples_vote_and_one_that_fails_is_null(
    ask: Callable[..., Outcome], remote: Remote
) -> None:
    outcome = ask(
        says("negative", reasoning="a"),
        says("It is fine."),
        says("positive"),
        says("positive"),
        output=LABEL,
        vote="choice",
        sampling={"n": 4, "temperature": 0.7},
    )
    assert isinstance(outcome, Answer)
    assert outcome.columns["output"] == "positive"
    assert outcome.columns["vote_share"] == 0.5
    first, failed, *others = outcome.columns["outputs"]
    assert failed is None
    assert [each["output"] for each in (first, *others)] == ["negative", "positive", "positive"]
    assert {each["output_tokens"] for each in (first, *others)} == {None}
    (call,) = remote.calls
    assert call.body["n"] == 4
    assert outcome.output_tokens == 9


def test_each_token_has_its_number(ask: Callable[..., Outcome], remote: Remote) -> None:
    top = [{"token": "po", "logprob": -0.5}, {"token": "ne", "logprob": -1.5}]
    told = {"content": [{"token": "po", "logprob": -0.5, "top_logprobs": top}]}
    outcome = ask({**says("po"), "logprobs": told}, sampling={"logprobs": 1})
    assert isinstance(outcome, Answer)
    number = {"token": "po", "token_id": None, "logprob": -0.5}
    assert outcome.columns["logprobs"] == [{**number, "top": [number]}]
    assert (remote.calls[0].body["logprobs"], remote.calls[0].body["top_logprobs"]) == (True, 1)


def test_the_template_of_the_servers_model_is_told_what_the_spec_says(
    ask: Callable[..., Outcome], remote: Remote
) -> None:
    row = {"template_arguments": {"reasoning_effort": "high"}}
    ask(says("x"), row=row, thinking="off", chat_template_kwargs={"reasoning_effort": "high"})
    told = remote.calls[-1].body["chat_template_kwargs"]
    assert told == {"reasoning_effort": "high", "enable_thinking": False, "thinking": False}
    ask(says("x"))
    assert "chat_template_kwargs" not in remote.calls[-1].body


def test_a_chat_with_tools_is_sent_as_the_api_has_it(
    ask: Callable[..., Outcome], remote: Remote
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
    ]
    ask(says("x"), row={"messages": messages})
    sent = remote.calls[-1].body["messages"]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"at": 1}'
    assert sent[2] == messages[2]


def test_a_row_has_a_sampling_of_its_own(ask: Callable[..., Outcome], remote: Remote) -> None:
    row = {"sampling": {"temperature": 0.3, "top_p": 0.9, "seed": 5}, "max_tokens": 11}
    ask(says("x"), row=row)
    body = remote.calls[-1].body
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.3, 0.9, 11)
