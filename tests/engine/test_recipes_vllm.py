"""The recipes of docs/models.md, as they stand there, on tiny models of the same class."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nightshift.common.spec import GenerateTask, VllmEngineSpec, parse_spec
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Work
from nightshift.worker.rows.prompts import Renderer
from tests.engine.contract import lent
from tests.support.families.build import build
from tests.support.families.table import MADE
from tests.support.models import ARGUMENTS, THINKING_MODEL

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
RECIPES = dict(re.findall(r"^### ([^\n]+)\n\n```yaml\n(.*?)```", PAGE.read_text(), re.M | re.S))

LABELS = {"positive", "neutral", "negative"}
TEXTS = [
    "The lamp is sturdy. I love how bright it is.",
    "It broke after a day, and the handle is flimsy.",
    "Delivery took three days. The box was blue.",
]


def task(recipe: str, **changed: Any) -> GenerateTask:
    """The recipe's task, checked as a whole spec."""
    told = yaml.safe_load(RECIPES[recipe])
    told["task"] |= changed
    whole = {"name": "x", "input": {"uri": "/in"}, "output": {"uri": "/out"}, **told}
    found = parse_spec(whole, recipe).task
    assert isinstance(found, GenerateTask)
    return found


def answered(engine: Engine, job: GenerateTask, columns: dict[str, list[Any]]) -> list[Outcome]:
    table = pa.table(columns)
    requests, refused = Renderer(job).render(table, range(table.num_rows))
    assert not refused
    outcomes: dict[int, Outcome] = {}
    resolved = json.loads(json.dumps(engine.resolve(job)))
    engine.start(Work(job, requests, 600, outcomes.__setitem__, resolved=resolved)).result()
    return [outcomes[position] for position in range(len(requests))]


def answers(engine: Engine, job: GenerateTask, columns: dict[str, list[Any]]) -> list[Answer]:
    outcomes = answered(engine, job, columns)
    assert all(isinstance(each, Answer) for each in outcomes), outcomes
    return [each for each in outcomes if isinstance(each, Answer)]


@pytest.fixture(scope="module")
def thinker() -> Iterator[Engine]:
    """The model of examples/thinking, a Qwen3 that thinks."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    spec = VllmEngineSpec(backend="vllm", model=str(THINKING_MODEL), args=ARGUMENTS)
    yield from lent(lambda: VllmEngine.load(spec, None))


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A gpt-oss with random weights."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    made = next(each for each in MADE if each.name == "gpt-oss")
    folder = build(made, tmp_path_factory.mktemp("gpt-oss"))
    args = {
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 4,
        "kv_cache_memory_bytes": 2**27,
    }
    spec = VllmEngineSpec(backend="vllm", model=str(folder), args=args)
    yield from lent(lambda: VllmEngine.load(spec, None))


def test_qwen3_without_thinking(thinker: Engine) -> None:
    recipe = "Qwen3 without thinking"
    for outcome in answers(thinker, task(recipe), {"text": TEXTS}):
        assert outcome.reasoning_tokens == 0
        assert outcome.columns["output"] in LABELS
    for outcome in answers(thinker, task(recipe, thinking="on"), {"text": TEXTS}):
        assert outcome.reasoning_tokens > 0
        assert outcome.columns["output"] in LABELS


def test_gpt_oss_with_high_effort(gpt_oss: Engine) -> None:
    recipe, short = "gpt-oss with high effort", {"max_tokens": 8}
    high = answered(gpt_oss, task(recipe, sampling=short), {"text": TEXTS})
    by_row = task(
        recipe,
        sampling=short,
        chat_template_kwargs={"reasoning_effort": {"column": "effort"}},
    )
    low = answered(gpt_oss, by_row, {"text": TEXTS, "effort": ["high", "low", "medium"]})
    # The vocabulary of the test has one token a byte: the word stands in the prompt.
    longer = [one.prompt_tokens - other.prompt_tokens for one, other in zip(low, high, strict=True)]
    assert longer == [0, len("low") - len("high"), len("medium") - len("high")]


def test_ten_samples_and_a_vote(thinker: Engine) -> None:
    for outcome in answers(thinker, task("Ten samples and a vote"), {"text": TEXTS}):
        labels = [each["output"] for each in outcome.columns["outputs"]]
        assert len(labels) == 10
        assert set(labels) <= LABELS
        most = max(labels, key=labels.count)
        assert labels.count(outcome.columns["output"]) == labels.count(most)
        assert outcome.columns["vote_share"] == labels.count(most) / 10
        assert {each["finish_reason"] for each in outcome.columns["outputs"]} == {"stop"}


def test_label_with_confidence(vllm_engine: Engine) -> None:
    job = task("Label with confidence")
    sure = answers(vllm_engine, job, {"text": TEXTS})
    for outcome in sure:
        assert 1 / 3 < outcome.columns["confidence"] <= 1, "the likeliest of three labels"
    by_label = [
        answers(
            vllm_engine,
            task("Label with confidence", output={"choice": [label], "confidence": True}),
            {"text": TEXTS},
        )
        for label in sorted(LABELS)
    ]
    for alone in by_label:
        assert [each.columns["confidence"] for each in alone] == pytest.approx([1.0] * len(TEXTS))


def test_a_chat_a_row(thinker: Engine) -> None:
    system = {"role": "system", "content": "Name the sentiment of the review."}
    chats = [[system, {"role": "user", "content": text}] for text in TEXTS]
    job = task("A chat a row", thinking="off")
    columns = {"chat": chats, "heat": [None, 1.0, 1.0], "seed": [None, 7, 7]}
    first = answers(thinker, job, columns)
    again = answers(thinker, job, {**columns, "chat": [json.dumps(each) for each in chats]})
    assert [each.columns["output"] for each in first] == [each.columns["output"] for each in again]
    assert {each.columns["output"] for each in first} <= LABELS


def test_every_recipe_of_the_page_is_run_here() -> None:
    run = Path(__file__).read_text()
    assert len(RECIPES) == 5
    for title in RECIPES:
        assert f'"{title}"' in run
