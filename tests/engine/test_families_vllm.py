"""Every family of the table: the tiny model loads and generates, and what its models write has right columns."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from nightshift.common.errors import JobRefused
from nightshift.common.formats.output_schema import output_schema
from nightshift.common.spec import GenerateTask, VllmEngineSpec
from nightshift.common.spec.job import JobSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Refusal, Request, Work
from nightshift.worker.engines.vllm.families import BY_NAME, HARMONY
from nightshift.worker.rows.results import RowResults, part_table
from tests.engine.contract import lent
from tests.support.families.build import build, tokenizer_of
from tests.support.families.table import LOADED, MADE, QWEN3, Made, chatml
from tests.support.families.transcripts import EVERY, Transcript

if TYPE_CHECKING:
    from nightshift.worker.engines.vllm.thinking import Thinking

CHOICES = ["positive", "negative"]
LABEL = {"choice": CHOICES}


def task(**fields: Any) -> GenerateTask:
    told = {"kind": "generate", "messages": [{"role": "user", "content": "{{ text }}"}], **fields}
    if "messages_column" in fields:
        del told["messages"]
    return GenerateTask.model_validate(told)


def tekken(made: Made, folder: Path) -> Any:
    from vllm.tokenizers.mistral import MistralTokenizer

    build(made, folder)
    return MistralTokenizer.from_pretrained(str(folder))


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer of a family, made once."""
    folder = tmp_path_factory.mktemp("tekken")
    made_before: dict[str, Any] = {}

    def of(made: Made) -> Any:
        if made.name not in made_before:
            is_tekken = made.tokenizer == "tekken"
            made_before[made.name] = tekken(made, folder) if is_tekken else tokenizer_of(made)
        return made_before[made.name]

    return of


def thinking_of(made: Made, tokenizer: Any) -> "Thinking":
    from nightshift.worker.engines.vllm.thinking import Thinking

    return Thinking(tokenizer, model_type_of(made))


def model_type_of(made: Made) -> str:
    import transformers

    return made.model_type or str(getattr(transformers, str(made.config)).model_type)


class Said:
    """A vLLM that answers with one transcript, token by token as its tokenizer cuts the text."""

    def __init__(self, tokenizer: Any, said: Transcript) -> None:
        self.tokenizer = tokenizer
        self.said = said

    @property
    def ids(self) -> list[int]:
        if hasattr(self.tokenizer, "mistral"):
            return pieces_of_tekken(self.tokenizer, self.said.text)
        return list(self.tokenizer(self.said.text, add_special_tokens=False)["input_ids"])

    async def generate(self, *given: Any, **_: Any) -> AsyncIterator[Any]:
        params, ids, ended = given[1], self.ids, self.said.finish_reason == "stop"
        text = self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
        completion = SimpleNamespace(
            text=text,
            token_ids=[*ids, *([self.tokenizer.eos_token_id] if ended else [])],
            finish_reason=self.said.finish_reason,
            logprobs=None,
        )
        yield SimpleNamespace(
            outputs=[completion],
            prompt_token_ids=[7, 8],
            prompt_logprobs=None,
            num_cached_tokens=0,
            metrics=None,
            finished=True,
        )


def pieces_of_tekken(tokenizer: Any, text: str) -> list[int]:
    """Control tokens are never made of text by Mistral's own tokenizer: a model writes them."""
    import re

    inner = tokenizer.instruct.tokenizer
    ids: list[int] = []
    for piece in re.split(r"(\[/?[A-Z_]+\])", text):
        if piece in inner._special_tokens_reverse_vocab:
            ids.append(inner.get_special_token(piece))
        else:
            ids += inner.encode(piece, bos=False, eos=False)
    return ids


def told_of(made: Made, tokenizer: Any, said: Transcript, **fields: Any) -> Outcome:
    """The outcome of a row of which the model wrote this."""
    from nightshift.worker.engines.vllm.answers import Opening
    from nightshift.worker.engines.vllm.generate import Generation, Prompt
    from nightshift.worker.engines.vllm.model import Model

    found = thinking_of(made, tokenizer)
    llm = cast(Any, Said(tokenizer, said))
    model = Model(llm, tokenizer, 2048, {}, found)
    resolved = {"thinking": found.family.name if found.family else None, "max_tokens": None}
    handler = Generation(model, task(keep_reasoning=True, **fields), resolved)
    outcome, _ = asyncio.run(handler.run(Request(0), Prompt([7, 8], Opening(said.inside))))
    return outcome


@pytest.mark.parametrize(
    ("made", "said"), EVERY, ids=[f"{made.name}-{said.name}" for made, said in EVERY]
)
def test_what_a_model_writes_has_right_columns(
    made: Made, said: Transcript, tokenizers: Any
) -> None:
    outcome = told_of(made, tokenizers(made), said)
    columns = table_of(outcome).to_pylist()[0]
    assert columns["output"] == said.answer
    assert columns["reasoning"] == said.reasoning
    if said.answer is None:
        assert columns["error"]["kind"] == RowErrorKind.TRUNCATED
        assert "task.sampling.max_tokens, which is 256 here" in columns["error"]["message"]
    else:
        assert columns["error"] is None
    assert columns["reasoning_tokens"] > 0 or not said.reasoning
    assert columns["reasoning_tokens"] == 0 or said.reasoning is not None
    assert columns["reasoning_tokens"] <= columns["output_tokens"]


def table_of(outcome: Outcome) -> pa.Table:
    """The part of a job with this row alone."""
    told = task(keep_reasoning=True).model_dump(mode="json", exclude_none=True)
    spec = JobSpec.model_validate(
        {
            "name": "families",
            "input": {"uri": "in.parquet"},
            "task": told,
            "engine": {"backend": "vllm", "model": "m"},
            "output": {"uri": "out"},
        }
    )
    schema = output_schema(spec, pa.schema([pa.field("text", pa.string())]))
    assert schema is not None
    passed = pa.table({"text": ["x"]}).select(spec.passed_columns)
    results = RowResults([0], passed if passed.num_columns else pa.table({"row": [0]}).select([]))
    results.outcomes[0] = outcome
    return part_table(spec, schema, results).table


@pytest.mark.parametrize(
    ("made", "said"),
    [each for each in EVERY if each[0].splits and each[1].answer == "positive"],
    ids=lambda each: each.name,
)
def test_a_label_after_a_thought_is_held_to_its_choices(
    made: Made, said: Transcript, tokenizers: Any
) -> None:
    outcome = told_of(made, tokenizers(made), said, output=LABEL, thinking="auto")
    assert isinstance(outcome, Answer)
    assert outcome.columns["output"] == "positive"


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
def test_the_prompt_says_whether_a_thought_is_open(made: Made, tokenizers: Any) -> None:
    found = thinking_of(made, tokenizers(made))
    assert (found.family and found.family.name) == made.splits
    assert found.gate == made.gate
    assert found.switch == made.switch
    if found.family is None:
        return
    assert found.inside(found.family, {}) is made.opened
    if found.switch is not None:
        assert found.inside(found.family, {found.switch: False}) is False
        assert found.inside(found.family, {found.switch: True}) is made.opened_on


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
def test_markers_in_the_text_of_a_row_change_nothing(
    made: Made, tokenizers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = thinking_of(made, tokenizers(made))
    if not found.template or found.family is None:
        return
    from nightshift.worker.engines.vllm.generate import Generation
    from nightshift.worker.engines.vllm.model import Model

    model = Model(cast(Any, None), tokenizers(made), 2048, {}, found)
    resolved = {"thinking": found.family.name, "max_tokens": None}
    texts = (f"{made.start} x", f"x {made.stop}", "</think>", "<think>", made.start, made.stop)
    work = Work(task(), rows("plain", *texts), 60, lambda *_: None, resolved=resolved)
    handler = Generation(model, task(), resolved)
    monkeypatch.setattr(handler, "verify", lambda: None)  # asks a loaded vLLM
    openings = [prompt.opening.inside for _, prompt in handler.prepare(work)]
    assert openings == [made.opened] * 7


def chatml_by(ask: str) -> Made:
    """Qwen's form of a chat, whose assistant begins by what the chat holds."""
    return replace(QWEN3, name="by chat", template=chatml(ask), switch=None)


BY_WORD = chatml_by(
    "{% if '/no_think' in messages[-1].content %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% else %}{{ '<think>\\n' }}{% endif %}"
)
BY_ROLE = chatml_by("{% if messages[-1].role != 'tool' %}{{ '<think>\\n' }}{% endif %}")
CLOSED_BEHIND_TOOL = chatml_by(
    "{% if messages[-1].role == 'tool' %}{{ '<think></think>' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("made", "role", "content", "inside"),
    [
        (BY_WORD, "user", "I love it", True),
        (BY_WORD, "user", "I love it /no_think", False),
        (BY_WORD, "user", "think", True),
        (BY_WORD, "user", "", True),
        (BY_WORD, "user", "<think> /no_think", False),
        (BY_ROLE, "user", "I love it", True),
        (BY_ROLE, "tool", "I love it", None),
        (BY_ROLE, "tool", "<think>\n", None),
        (CLOSED_BEHIND_TOOL, "user", "I love it", None),
        (CLOSED_BEHIND_TOOL, "tool", "I love it", False),
    ],
)
def test_a_template_may_look_at_the_chat_of_each_row(
    made: Made, role: str, content: str, inside: bool | None
) -> None:
    tokenizer = tokenizer_of(made)
    found = thinking_of(made, tokenizer)
    assert found.family is not None
    chat = [{"role": "user", "content": "Look."}, {"role": role, "content": content}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert found.inside(found.family, {}, found.tail_of({}, chat, text)) is inside


@pytest.fixture(scope="session", params=LOADED, ids=lambda made: made.name)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A family's tiny model in vLLM."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    made: Made = request.param
    folder = build(made, tmp_path_factory.mktemp(made.name))
    args = {
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 4,
        "kv_cache_memory_bytes": 2**27,
        **made.load,
    }
    spec = VllmEngineSpec(backend="vllm", model=str(folder), args=args)
    for engine in lent(lambda: VllmEngine.load(spec, None)):
        yield made, engine


def ask(engine: Engine, job: GenerateTask, *requests: Request) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    resolved = engine.resolve(job)
    engine.start(
        Work(
            job, list(requests), 60, outcomes.__setitem__, resolved=json.loads(json.dumps(resolved))
        )
    ).result()
    assert sorted(outcomes) == list(range(len(requests)))
    return outcomes


def rows(*texts: str) -> list[Request]:
    return [
        Request(index, messages=[{"role": "user", "content": text}])
        for index, text in enumerate(texts)
    ]


def test_it_loads_and_generates_the_right_columns(loaded: tuple[Made, Engine]) -> None:
    made, engine = loaded
    free = task(sampling={"max_tokens": 12}, keep_reasoning=True)
    texts = ("I love it", f"It broke {made.start} {made.stop}", "<think></think>")
    for outcome in ask(engine, free, *rows(*texts)).values():
        if isinstance(outcome, Refusal):
            # A prompt that opens a thought, or a model with random weights that did.
            assert outcome.kind in (RowErrorKind.TRUNCATED, RowErrorKind.INVALID_OUTPUT)
            assert made.splits is not None
        else:
            answer = str(outcome.columns["output"])
            assert made.splits is None or (made.start not in answer and made.stop not in answer)
        assert outcome.output_tokens <= 12


def test_a_label_is_held_from_its_first_token(loaded: tuple[Made, Engine]) -> None:
    made, engine = loaded
    held = task(sampling={"max_tokens": 16}, output=LABEL)
    outcomes = ask(engine, held, *rows("I love it", "It broke <think> </think>"))
    assert {str(each.columns.get("output")) for each in outcomes.values()} <= set(CHOICES)
    if made.tokenizer == "tekken":  # which xgrammar does not read itself
        sure = task(sampling={"max_tokens": 16}, output={**LABEL, "confidence": True})
        (outcome,) = ask(engine, sure, *rows("I love it")).values()
        assert isinstance(outcome, Answer), outcome
        assert 0 < outcome.columns["confidence"] <= 1


def test_samples_are_drawn_with_their_numbers(loaded: tuple[Made, Engine]) -> None:
    _, engine = loaded
    sampled = task(
        sampling={"max_tokens": 16, "n": 2, "temperature": 1.0}, output=LABEL, vote="choice"
    )
    (outcome,) = ask(engine, sampled, *rows("I love it")).values()
    assert isinstance(outcome, Answer)
    outputs = outcome.columns["outputs"]
    assert len(outputs) == 2
    assert {each["output"] for each in outputs} <= set(CHOICES)
    assert outcome.columns["vote_share"] in (0.5, 1.0)


def test_thinking_is_turned_off_where_the_template_has_a_switch(
    loaded: tuple[Made, Engine],
) -> None:
    made, engine = loaded
    off = task(thinking="off", sampling={"max_tokens": 8})
    if made.switch is None:
        with pytest.raises(
            JobRefused, match=r"^task\.thinking is off, and the model's chat template has no switch"
        ):
            engine.resolve(off)
        return
    (outcome,) = ask(engine, off, *rows("I love it")).values()
    assert isinstance(outcome, Answer)
    label = task(thinking="off", output=LABEL, sampling={"max_tokens": 12})
    (outcome,) = ask(engine, label, *rows("I love it")).values()
    assert outcome.columns["output"] in CHOICES


def test_a_thought_is_ended_by_its_budget_or_the_job_is_refused(
    loaded: tuple[Made, Engine],
) -> None:
    made, engine = loaded
    word = {} if made.switch is None else {"thinking": "on"}
    on = task(thinking_budget=3, sampling={"max_tokens": 24}, keep_reasoning=True, **word)
    opens = (made.opened if made.switch is None else made.opened_on) is True
    if not opens or made.gate is None:
        with pytest.raises(JobRefused, match=r"^task\.thinking_budget"):
            engine.resolve(on)
        return
    (outcome,) = ask(engine, on, *rows("I love it")).values()
    assert isinstance(outcome, Answer), outcome
    assert outcome.reasoning_tokens == 3
    label = task(
        thinking_budget=3,
        thinking=word.get("thinking", "auto"),
        output=LABEL,
        sampling={"max_tokens": 24},
    )
    (outcome,) = ask(engine, label, *rows("I love it")).values()
    assert isinstance(outcome, Answer), outcome
    assert outcome.columns["output"] in CHOICES
    assert outcome.reasoning_tokens == 3


def test_free_text_before_a_held_answer_needs_a_word_of_thinking_where_the_model_thinks(
    loaded: tuple[Made, Engine],
) -> None:
    _, engine = loaded
    job = task(output={**LABEL, "hold": "on_retry"}, sampling={"max_tokens": 12})
    if cast(Any, engine)._thinking.thinks({}):
        with pytest.raises(JobRefused, match=r"say task\.thinking \(on, off or auto\)"):
            engine.resolve(job)
        return
    (outcome,) = ask(engine, job, *rows("I love it")).values()
    assert isinstance(outcome, Answer)
    assert outcome.columns["output"] in CHOICES


def test_an_explicit_thought_and_a_label_go_together(loaded: tuple[Made, Engine]) -> None:
    """A row that opens no thought is held from its first token when it is asked again."""
    made, engine = loaded
    job = task(thinking="auto", output=LABEL, sampling={"max_tokens": 12})
    if made.splits is not None and made.gate is None:
        word = "auto" if made.switch is None else "on"
        with pytest.raises(JobRefused, match="cannot tell where a thought of this model ends"):
            engine.resolve(task(thinking=word, output=LABEL))
        if made.opened is not False:
            return
    (outcome,) = ask(engine, job, *rows("I love it")).values()
    if isinstance(outcome, Answer):
        assert outcome.columns["output"] in CHOICES
    else:
        assert made.splits is not None
        assert outcome.kind in (RowErrorKind.TRUNCATED, RowErrorKind.INVALID_OUTPUT)


def test_the_longest_answer_of_a_model_that_thinks_is_bounded_by_its_context(
    loaded: tuple[Made, Engine],
) -> None:
    made, engine = loaded
    found = engine.resolve(task())
    thinks = made.splits is not None and made.opened is not False
    if made.switch is not None:
        by_row = task(chat_template_kwargs={made.switch: {"column": "thinks"}})
        assert engine.resolve(by_row)["max_tokens"] == 512
    assert found["max_tokens"] == (512 if thinks else None)
    assert found["thinking"] == made.splits
    assert engine.resolve(task(output=LABEL)) == {"thinking": None, "max_tokens": None}
    assert engine.resolve(task(sampling={"max_tokens": 256}))["max_tokens"] is None


def test_the_table_names_parsers_that_vllm_has() -> None:
    from vllm.reasoning import ReasoningParserManager

    known = set(ReasoningParserManager.list_registered())
    assert {family.parser for family in BY_NAME.values() if family.parser} <= known
    assert HARMONY in known
    assert QWEN3.gate in known
