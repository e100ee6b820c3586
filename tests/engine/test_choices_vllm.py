"""Choices that one token tells: the same labels as under a grammar, from the real vLLM."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nightshift.common.spec import GenerateTask, VllmEngineSpec
from nightshift.worker.engines.protocol import Answer, Engine, Refusal, Request, Work
from tests.engine.contract import lent
from tests.support.models import ARGUMENTS, MODEL

if TYPE_CHECKING:
    from vllm import SamplingParams

SENTIMENTS = ["positive", "neutral", "negative"]

NAMED = [
    SENTIMENTS,
    [" positive", " negative"],
    ["good", "good morning", "good evening"],
    ["very happy", "very unhappy", "neither"],
    ["yes", "no"],
    ["A", "B", "C", "D"],
    ["größer", "größe", "日本", "日本語", "👍", "👎🏽"],
    ['"quoted"', "back\\slash", "two\nlines", "tab\there"],
    ["only this"],
]
"""Sets of labels: some share beginnings, one is the beginning of others, some begin with a space or have bytes of
several tokens."""

NEAR = 0.02
"""Two best tokens that lie nearer than this, in nats, may change places between two runs of the same request."""

PIECES = [
    "pos",
    "neg",
    "neu",
    " ",
    "very ",
    "not ",
    "a",
    "b",
    "ab",
    "tive",
    "tral",
    "é",
    "happy",
    "un",
]


def random_sets(count: int) -> list[list[str]]:
    """Sets of labels made of few pieces, so that many share beginnings."""
    chosen = random.Random(7)
    sets = []
    for _ in range(count):
        many = chosen.randint(2, 8)
        labels = ("".join(chosen.choices(PIECES, k=chosen.randint(1, 4))) for _ in range(many))
        sets.append([*dict.fromkeys(labels)])
    return sets


def task(labels: list[str], **fields: Any) -> GenerateTask:
    output = {"choice": labels, **fields.pop("output", {})}
    return GenerateTask.model_validate(
        {"kind": "generate", "prompt": "{{ text }}", "output": output, **fields}
    )


def chats(texts: list[str]) -> list[Request]:
    return [
        Request(at, messages=[{"role": "user", "content": text}], is_plain_prompt=True)
        for at, text in enumerate(texts)
    ]


def asked(engine: Engine, job: GenerateTask, texts: list[str]) -> list[Answer]:
    found: dict[int, Any] = {}
    engine.start(Work(job, chats(texts), 600, found.__setitem__)).result()
    answers = [outcome for _, outcome in sorted(found.items())]
    assert [each for each in answers if not isinstance(each, Answer)] == []
    return answers


@contextmanager
def heard(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What vLLM is asked for meanwhile."""
    params: list[Any] = []
    generate = engine.llm.generate

    def listening(prompt: Any, asked_for: "SamplingParams", *args: Any, **more: Any) -> Any:
        params.append(asked_for)
        return generate(prompt, asked_for, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(engine.llm, "generate", listening)
        yield params


def under_a_grammar(engine: Any, labels: list[str], texts: list[str]) -> list[tuple[str, float]]:
    """What vLLM's own structured output answers, and how far the two best allowed first tokens lie apart."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    from nightshift.worker.engines.vllm.model import finished
    from nightshift.worker.engines.vllm.spelling import Spelling, labels_of

    tokenizer = engine.llm.get_tokenizer()
    first = Spelling.of_engine(engine.llm, tokenizer).tokens(labels_of(labels))
    params = SamplingParams(
        temperature=0,
        max_tokens=64,
        structured_outputs=StructuredOutputsParams(choice=labels),
        logprob_token_ids=sorted(first)[:128],
        output_kind=RequestOutputKind.FINAL_ONLY,
    )

    async def run() -> list[tuple[str, float]]:
        async def one(number: int, text: str) -> tuple[str, float]:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            given = TokensPrompt(prompt_token_ids=ids)
            output = await finished(
                engine.llm.generate(given, params, f"grammar-{number}-{labels}")
            )
            (answer,) = output.outputs
            told = sorted((answer.logprobs[0][each].logprob for each in first), reverse=True)
            return answer.text, told[0] - told[1] if len(told) > 1 else np.inf

        return list(await asyncio.gather(*(one(*each) for each in enumerate(texts))))

    return engine._loop_thread.run(run())


REVIEWS = [
    f"Review {number}: {text}"
    for number in range(8)
    for text in (
        "I love it, the best that I ever had.",
        "Broken after a day, I want my money back.",
        "It is a lamp. It came on Monday.",
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [*NAMED, *random_sets(50)], ids=repr)
def test_a_label_is_the_one_that_a_grammar_gives(vllm_engine: Engine, labels: list[str]) -> None:
    answers = asked(vllm_engine, task(labels, dedupe=False), REVIEWS)
    for answer, (text, apart) in zip(
        answers, under_a_grammar(vllm_engine, labels, REVIEWS), strict=True
    ):
        assert answer.columns["output"] == text or apart < NEAR


def test_a_row_whose_label_one_token_begins_costs_one_token(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["positive", "unclear", "bad"]
    with heard(vllm_engine, monkeypatch) as params:
        answers = asked(vllm_engine, task(labels), REVIEWS)
    assert {each.finish_reason for each in answers} == {"stop"}
    assert {each.output_tokens for each in answers} == {1}
    assert all(each.structured_outputs is None for each in params), "nothing compiles a grammar"
    assert len(params) == len(REVIEWS)
    assert [each.columns["output"] for each in answers] == [
        text for text, _ in under_a_grammar(vllm_engine, labels, REVIEWS)
    ]


def test_rows_that_begin_several_labels_end_the_trial_and_are_answered_under_a_grammar(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["the end of all", "the end of it", "the start of all", "the start of it"]
    texts = [f"{text} {number}" for number in range(4) for text in REVIEWS]
    with heard(vllm_engine, monkeypatch) as params:
        answers = asked(vllm_engine, task(labels), texts)
    tried = [each for each in params if each.structured_outputs is None]
    assert 8 <= len(tried) < 40
    assert sum(each.output_tokens for each in answers) > len(tried), "all that was computed counts"
    assert [each.columns["output"] for each in answers] == [
        text for text, _ in under_a_grammar(vllm_engine, labels, texts)
    ]


def test_a_second_token_tells_a_label_that_begins_another_and_both_count(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with heard(vllm_engine, monkeypatch) as params:
        answers = asked(vllm_engine, task(["A", "AB"]), REVIEWS[:4])
    assert all(each.structured_outputs is None for each in params)
    assert len(params) == 8
    assert {each.output_tokens for each in answers} == {2}
    assert [each.columns["output"] for each in answers] == [
        text for text, _ in under_a_grammar(vllm_engine, ["A", "AB"], REVIEWS[:4])
    ]


def test_the_numbers_of_a_prompt_have_their_tokens_as_text(vllm_engine: Engine) -> None:
    job = task(["positive", "unclear", "bad"], sampling={"prompt_logprobs": 1})
    (answer,) = asked(vllm_engine, job, REVIEWS[:1])
    assert answer.output_tokens == 1
    assert all(each["token"] is not None for each in answer.columns["prompt_logprobs"][1:])


def test_a_confidence_comes_out_of_the_same_pass(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["positive", "unclear", "bad"]
    with heard(vllm_engine, monkeypatch) as params:
        answers = asked(vllm_engine, task(labels, output={"confidence": True}), REVIEWS)
    assert len(params) == len(REVIEWS)
    assert all(0 < each.columns["confidence"] <= 1 for each in answers)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": {"temperature": 0.5}},
        {"sampling": {"temperature": 1, "n": 2}},
        {"sampling": {"logprobs": 1}},
    ],
)
def test_other_tasks_go_on_as_they_are(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    with heard(vllm_engine, monkeypatch) as params:
        asked(vllm_engine, task(SENTIMENTS, **fields), REVIEWS[:3])
    assert all(each.structured_outputs is not None for each in params)
    assert len(params) == 3


@pytest.mark.parametrize(
    ("fields", "can"),
    [
        ({}, True),
        ({"sampling": {"max_tokens": 1}}, True),
        ({"sampling": {"temperature": 0.7}}, True),
        ({"sampling": {"prompt_logprobs": 1}}, True),
        ({"sampling": {"n": 2, "temperature": 1}}, False),
        ({"sampling": {"logprobs": 0}}, False),
        ({"sampling": {"stop": ["."]}}, False),
        ({"sampling": {"ignore_eos": True}}, False),
        ({"sampling": {"min_tokens": 1}}, False),
        ({"sampling": {"repetition_penalty": 1.1}}, False),
        ({"sampling": {"presence_penalty": 0.1}}, False),
        ({"sampling": {"frequency_penalty": -0.1}}, False),
        ({"sampling_columns": {"temperature": "t", "max_tokens": "m"}}, True),
        ({"sampling_columns": {"min_tokens": "m"}}, False),
        ({"sampling_columns": {"repetition_penalty": "r"}}, False),
        ({"output": {"choice": ["half \ufffd", "other"]}}, False),
        ({"output": {"choice": None, "regex": "a|b"}}, False),
    ],
)
def test_tasks_whose_answers_one_token_may_tell(fields: dict[str, Any], can: bool) -> None:
    from nightshift.worker.engines.vllm.one_pass import can_tell

    assert can_tell(task(SENTIMENTS, **fields)) is can


@pytest.mark.parametrize(
    ("over", "several", "does"),
    [
        (0, 0, True),
        (7, 7, True),
        (8, 8, False),
        (16, 8, True),
        (15, 8, False),
        (100, 30, True),
        (100, 31, False),
        (200, 30, True),
        (200, 31, False),
        (10_000, 1_500, True),
        (10_000, 1_501, False),
    ],
)
def test_one_token_is_given_up_where_too_many_rows_begin_several_labels(
    over: int, several: int, does: bool
) -> None:
    from nightshift.worker.engines.vllm.one_pass import pays

    assert pays(over, several) is does


@pytest.mark.parametrize(
    ("begun", "over", "may"),
    [(0, 0, True), (15, 0, True), (16, 0, False), (17, 1, True), (18, 1, False), (500, 250, True)],
)
def test_few_rows_are_asked_before_any_has_told(begun: int, over: int, may: bool) -> None:
    from nightshift.worker.engines.vllm.one_pass import may_begin

    assert may_begin(begun, over) is may


def test_a_trial_that_ended_stays_ended() -> None:
    from nightshift.worker.engines.vllm.one_pass import Trial

    trial = Trial()
    for _ in range(8):
        with trial.row():
            trial.several += 1
    assert trial.is_off
    for _ in range(1_000):
        with trial.row():
            pass
    assert not trial.is_open


def byte_level() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(MODEL))


def sentencepiece() -> Any:
    """A tokenizer as SentencePiece makes them: ▁ for spaces, one put before each text, and bytes as a fallback."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    made.train_from_iterator([" ".join(PIECES), *REVIEWS, *map(" ".join, NAMED[:4])], trainer)
    learnt = json.loads(made.to_str())["model"]
    spare = (f"<0x{byte:02X}>" for byte in range(256))
    vocabulary = {
        **learnt["vocab"],
        **{text: len(learnt["vocab"]) + at for at, text in enumerate(spare)},
    }
    merges = [tuple(each) for each in learnt["merges"]]
    made.model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("made", [byte_level, sentencepiece])
def test_the_tokens_that_may_begin_a_label_are_those_of_a_grammar(made: Callable[[], Any]) -> None:
    import xgrammar
    from vllm.v1.structured_output.utils import choice_as_grammar

    from nightshift.worker.engines.vllm.spelling import Spelling, labels_of

    tokenizer = made()
    vocabulary = len(tokenizer)
    spelling = Spelling.of(tokenizer, vocabulary)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
    compiler = xgrammar.GrammarCompiler(info)
    for labels in [*NAMED, *random_sets(50)]:
        matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(choice_as_grammar(labels)))
        mask = xgrammar.allocate_token_bitmask(1, vocabulary)
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:vocabulary]
        assert set(np.flatnonzero(bits)) == set(spelling.tokens(labels_of(labels))), labels


@pytest.fixture(scope="module")
def spelled_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model with random weights and a vocabulary as SentencePiece makes them."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    from nightshift.worker.engines.vllm.engine import VllmEngine

    folder = tmp_path_factory.mktemp("spelled")
    tokenizer = sentencepiece()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}: {% endfor %}"
    tokenizer.save_pretrained(folder)
    set_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **heads, **ends))
    model.lm_head.weight.data.mul_(20)  # else all tokens are about equally likely
    model.save_pretrained(folder)
    args = {
        **ARGUMENTS,
        "dtype": "float32",
    }  # vLLM's attention in bfloat16 needs heads of other sizes here
    spec = VllmEngineSpec(backend="vllm", model=str(folder), args=args)
    yield from lent(lambda: VllmEngine.load(spec, None))


@pytest.mark.slow
@pytest.mark.parametrize("labels", [*NAMED, *random_sets(10)], ids=repr)
def test_a_label_in_tokens_of_sentencepiece_is_the_one_that_a_grammar_gives(
    spelled_engine: Engine, labels: list[str]
) -> None:
    answers = asked(spelled_engine, task(labels, dedupe=False), REVIEWS)
    held = under_a_grammar(spelled_engine, labels, REVIEWS)
    for answer, (text, apart) in zip(answers, held, strict=True):
        label = str(answer.columns["output"])
        # The decoder of such a tokenizer drops a space before the first word.
        assert label in labels
        assert label.lstrip() == text.lstrip() or apart < NEAR


def test_free_text_that_is_no_label_is_asked_again_under_the_form(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = task(["up", "down"], output={"hold": "on_retry"})
    with heard(vllm_engine, monkeypatch) as params:
        answers = asked(vllm_engine, job, REVIEWS[:3])
    assert {str(each.columns["output"]) for each in answers} <= {"up", "down"}
    free = [
        each for each in params if each.structured_outputs is None and not each.allowed_token_ids
    ]
    assert len(free) == 3
    assert all(each.max_tokens == len("down") + 2 for each in free), "what is longer is no label"
    assert all(each.prompt_tokens > len(REVIEWS[0]) / 8 for each in answers)


def test_free_text_that_is_a_label_is_asked_once(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [
        {"role": "system", "content": "Name the sentiment of the review."},
        {"role": "user", "content": "{{ text }}"},
    ]
    job = task(SENTIMENTS, output={"hold": "on_retry"}, prompt=None, messages=messages)
    found: dict[int, Any] = {}
    requests = [
        Request(at, messages=[messages[0], {"role": "user", "content": text}])
        for at, text in enumerate(REVIEWS)
    ]
    with heard(vllm_engine, monkeypatch) as params:
        vllm_engine.start(Work(job, requests, 600, found.__setitem__)).result()
    assert not any(isinstance(each, Refusal) for each in found.values())
    again = [each for each in params if each.structured_outputs or each.allowed_token_ids]
    assert len(again) < len(REVIEWS) / 2
