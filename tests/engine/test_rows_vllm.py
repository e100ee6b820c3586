"""What becomes of one row's answer: cut, drawn again, with special tokens; a vLLM that answers from a script."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.common.errors import JobRefused
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request
from tests.engine.test_families_vllm import LABEL, task
from tests.support.families.build import tokenizer_of
from tests.support.families.table import MADE, QWEN3

PROMPT = [7, 8]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_of(QWEN3)


class Script:
    """A vLLM whose requests get these answers in order: each a list of samples, (token ids, finish reason)."""

    def __init__(self, tokenizer: Any, *answers: Sequence[tuple[Sequence[int], str]]) -> None:
        self.tokenizer = tokenizer
        self.answers = list(answers)
        self.asked: list[tuple[Any, Mapping[str, Any]]] = []

    async def generate(self, *given: Any, **told: Any) -> AsyncIterator[Any]:
        self.asked.append((given[1], told))
        outputs = [
            SimpleNamespace(
                text=self.tokenizer.decode(ids, skip_special_tokens=given[1].skip_special_tokens),
                token_ids=[*ids, *([self.tokenizer.eos_token_id] if reason == "stop" else [])],
                finish_reason=reason,
                logprobs=None,
            )
            for ids, reason in self.answers.pop(0)
        ]
        yield SimpleNamespace(
            outputs=outputs,
            prompt_token_ids=PROMPT,
            prompt_logprobs=None,
            num_cached_tokens=0,
            metrics=None,
            finished=True,
        )


def outcome_of(
    script: Script, job: Any, request: Request | None = None, *, context: int = 2048
) -> Outcome:
    """The outcome of a row whose prompt leaves it to the model whether it thinks."""
    from nightshift.worker.engines.vllm.answers import Opening
    from nightshift.worker.engines.vllm.generate import Generation, Prompt
    from nightshift.worker.engines.vllm.model import Model
    from nightshift.worker.engines.vllm.thinking import Thinking

    thinking = Thinking(script.tokenizer, "qwen3")
    model = Model(cast(Any, script), script.tokenizer, context, {}, thinking)
    handler = Generation(model, job, {"thinking": "qwen3", "max_tokens": None})
    outcome, _ = asyncio.run(handler.run(request or Request(0), Prompt(PROMPT, Opening(None))))
    return outcome


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    ("own", "context", "why"),
    [
        (None, 2048, "raise task.sampling.max_tokens, which is 100 here"),
        (200, 2048, "raise task.sampling.max_tokens, which is 100 here"),
        (5, 2048, "raise the row's own bound in the column 'longest', which is 5 here"),
        (
            5,
            7,
            "raise engine.args.max_model_len, or shorten the prompt: the context has room for 5",
        ),
        (
            None,
            50,
            "raise engine.args.max_model_len, or shorten the prompt: the context has room for 48",
        ),
    ],
)
def test_a_row_that_is_cut_names_the_number_that_cut_it(
    tokenizer: Any, own: int | None, context: int, why: str
) -> None:
    script = Script(tokenizer, [(ids(tokenizer, "<think>Let me see"), "length")])
    job = task(sampling={"max_tokens": 100}, sampling_columns={"max_tokens": "longest"})
    outcome = outcome_of(script, job, Request(0, max_tokens=own), context=context)
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TRUNCATED
    assert why in outcome.message


def test_a_row_that_is_cut_right_behind_its_thought_is_no_empty_answer(tokenizer: Any) -> None:
    script = Script(tokenizer, [(ids(tokenizer, "<think>Let me see</think>"), "length")])
    outcome = outcome_of(script, task(sampling={"max_tokens": 9}))
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TRUNCATED


@pytest.mark.parametrize("said", [" yes", "\n\nno"])
def test_a_held_answer_behind_a_thought_keeps_its_white_space(tokenizer: Any, said: str) -> None:
    script = Script(tokenizer, [(ids(tokenizer, f"<think>a</think>{said}"), "stop")])
    job = task(thinking="on", output={"choice": [" yes", "no"]})
    outcome = outcome_of(script, job)
    assert isinstance(outcome, Answer), outcome
    assert outcome.columns["output"] == said.removeprefix("\n\n")


HARMONY_TEXT = (
    "<|channel|>analysis<|message|>Let me see<|end|>"
    "<|start|>assistant<|channel|>final<|message|>positive"
)


def harmony_model() -> Any:
    from nightshift.worker.engines.vllm.thinking import Thinking

    (gpt_oss,) = (made for made in MADE if made.tokenizer == "harmony")
    return Thinking(tokenizer_of(gpt_oss), "gpt_oss")


def test_no_cut_of_a_harmony_answer_leaves_a_header_in_the_answer() -> None:
    from nightshift.worker.engines.vllm.answers import harmony

    model = harmony_model()
    whole = ids(model.tokenizer, HARMONY_TEXT)
    answers = [harmony(model.tokenizer, whole[:length]) for length in range(1, len(whole) + 1)]
    assert all("positive".startswith(each.answer or "") for each in answers)
    assert answers[-1].answer == "positive"
    assert all(each.thought for each in answers)
    assert answers[-1].reasoning == "Let me see"


def test_a_stop_string_is_no_part_of_a_harmony_answer() -> None:
    from nightshift.worker.engines.vllm.answers import Split
    from nightshift.worker.engines.vllm.families import BY_NAME, HARMONY

    model = harmony_model()
    split = Split(model, task(sampling={"stop": ["END"]}), BY_NAME[HARMONY])
    parted, _ = split.part("", ids(model.tokenizer, f"{HARMONY_TEXT} day. END"), None)
    assert parted.answer == "positive day. "


@pytest.mark.parametrize(
    ("text", "count", "answer"),
    [
        (HARMONY_TEXT, "Let me see", "positive"),
        ("<|channel|>final<|message|>positive", "", "positive"),
        (
            "<|channel|>analysis<|message|>Let me see<|end|><|start|>assistant to=functions.look"
            '<|channel|>commentary<|constrain|>json<|message|>{"at": 1}<|call|>',
            "Let me see",
            '{"at": 1}<|call|>',
        ),
        ("<|channel|>analysis<|message|>Let me", "Let me", None),
    ],
)
def test_only_the_thoughts_of_harmony_are_counted(
    text: str, count: str, answer: str | None
) -> None:
    from nightshift.worker.engines.vllm.answers import Split
    from nightshift.worker.engines.vllm.families import BY_NAME, HARMONY

    model = harmony_model()
    split = Split(model, task(), BY_NAME[HARMONY])
    whole = ids(model.tokenizer, text)
    _, tokens = split.part("", whole, None)
    assert tokens == len(ids(model.tokenizer, count))
    if answer is not None:
        assert model.decoded(whole[split.start(whole, thought=bool(count)) :]) == answer


def test_a_special_token_is_no_text_and_its_name_in_an_answer_is(tokenizer: Any) -> None:
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    name = [*ids(tokenizer, "<|im_"), *ids(tokenizer, "start|>")]
    assert start not in name
    script = Script(
        tokenizer,
        [([*ids(tokenizer, "<think>a</think>The token "), *name], "stop")],
        [([*ids(tokenizer, "<think>a</think>good"), start, *ids(tokenizer, " day")], "stop")],
    )
    told = [outcome_of(script, task()).columns["output"] for _ in range(2)]
    assert told == ["The token <|im_start|>", "good day"]


def test_a_stop_string_cuts_a_text_with_special_tokens_too(tokenizer: Any) -> None:
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    said = [*ids(tokenizer, "<think>a</think>good"), start, *ids(tokenizer, " day. END and")]
    script = Script(tokenizer, [(said, "length")])
    outcome = outcome_of(script, task(sampling={"stop": ["END"]}))
    assert outcome.columns["output"] == "good day."


def test_only_samples_that_thought_nothing_and_failed_are_held_at_once(tokenizer: Any) -> None:
    def said(text: str, reason: str = "stop") -> tuple[list[int], str]:
        return ids(tokenizer, text), reason

    first = [
        said("<think>a</think>negative"),
        said("It is fine."),
        said("<think>a</think>It is fine."),
        said("Well", "length"),
        said("positive"),
    ]
    script = Script(tokenizer, first, [said("positive"), said("negative")])
    job = task(
        thinking="auto",
        output=LABEL,
        vote="choice",
        sampling={"n": 5, "temperature": 1.0},
        keep_reasoning=True,
    )
    outcome = outcome_of(script, job)
    assert isinstance(outcome, Answer)
    outputs = [each and each["output"] for each in outcome.columns["outputs"]]
    assert outputs == ["negative", "positive", None, "negative", "positive"]
    (before, told_before), (after, told_after) = script.asked
    assert (before.n, told_before) == (5, {"reasoning_ended": False})
    assert (after.n, told_after) == (2, {"reasoning_ended": True})
    assert outcome.prompt_tokens == 2 * len(PROMPT)
    drawn = [*first, *(said("positive"), said("negative"))]
    ends = sum(reason == "stop" for _, reason in drawn)
    assert outcome.output_tokens == sum(len(each) for each, _ in drawn) + ends


@pytest.mark.parametrize(
    ("named", "model_type", "family"),
    [
        ("deepseek_r1", "qwen3", "deepseek_r1"),
        ("deepseek_v3", "qwen3", "qwen3"),
        ("hunyuan_a13b", "qwen3", "qwen3"),
        ("granite", "qwen3", "qwen3"),
    ],
)
def test_a_named_parser_without_markers_leaves_the_models_own_family(
    tokenizer: Any, named: str, model_type: str, family: str
) -> None:
    from nightshift.worker.engines.vllm.thinking import Thinking

    found = Thinking(tokenizer, model_type, named)
    assert found.family is not None
    assert found.family.name == family
    assert found.gate == named


def test_a_named_parser_that_parts_no_answer_is_refused() -> None:
    from nightshift.worker.engines.vllm.answers import resolve
    from nightshift.worker.engines.vllm.thinking import Thinking

    (llama,) = (made for made in MADE if made.name == "llama3")
    found = Thinking(tokenizer_of(llama), "llama", "granite")
    with pytest.raises(JobRefused, match=r"^engine\.args\.reasoning_parser names a parser without"):
        resolve(task(), found, 2048, can_force=False)
    assert resolve(task(output=LABEL), found, 2048, can_force=False)["thinking"] is None
