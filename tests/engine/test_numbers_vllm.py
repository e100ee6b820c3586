"""Numbers beside answers, from the real vLLM: log probabilities, confidence, and samples by their seeds."""

import math
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pyarrow as pa
import pytest

from nightshift.common.errors import JobRefused
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Work
from nightshift.worker.rows.prompts import Renderer
from tests.engine.test_recipes_vllm import TEXTS, answers, task
from tests.support.fleet import wait_until

RECIPE = "Label with confidence"


def free(output: Any = None, **fields: Any) -> Any:
    return task(RECIPE, output=output, **fields)


def test_each_token_of_an_answer_has_its_number(vllm_engine: Engine) -> None:
    job = free(sampling={"max_tokens": 6, "logprobs": 2})
    for outcome in answers(vllm_engine, job, {"text": TEXTS}):
        told = outcome.columns["logprobs"]
        assert len(told) == outcome.output_tokens
        for each in told:
            assert each["logprob"] <= 0
            assert len(each["top"]) == 2
            assert each["top"][0]["token_id"] == each["token_id"], (
                "a greedy answer has the likeliest"
            )
            assert each["top"][0]["logprob"] >= each["top"][1]["logprob"]
        text = "".join(each["token"] for each in told)
        assert text.startswith(str(outcome.columns["output"]))


def test_each_token_of_a_prompt_but_the_first_has_its_number(vllm_engine: Engine) -> None:
    job = free(sampling={"max_tokens": 2, "prompt_logprobs": 1})
    for outcome in answers(vllm_engine, job, {"text": TEXTS}):
        told = outcome.columns["prompt_logprobs"]
        assert len(told) == outcome.prompt_tokens
        assert told[0]["logprob"] is None
        assert all(each["logprob"] <= 0 for each in told[1:])


def test_an_answer_is_the_same_with_its_numbers(vllm_engine: Engine) -> None:
    plain = answers(vllm_engine, free(sampling={"max_tokens": 6}), {"text": TEXTS})
    told = answers(vllm_engine, free(sampling={"max_tokens": 6, "logprobs": 0}), {"text": TEXTS})
    assert [each.columns["output"] for each in plain] == [each.columns["output"] for each in told]
    assert all(each["top"] == [] for outcome in told for each in outcome.columns["logprobs"])


def test_confidence_is_how_often_a_sampling_gives_the_label(vllm_engine: Engine) -> None:
    texts = [
        *TEXTS,
        "Is it good? The strap is fine, not great.",
        "The lid is neither weak nor solid.",
    ]
    sure = answers(vllm_engine, task(RECIPE), {"text": texts})
    drawn = answers(
        vllm_engine,
        task(
            "Ten samples and a vote",
            sampling={"n": 128, "temperature": 1.0, "seed": 3},
        ),
        {"text": texts},
    )
    for one, many in zip(sure, drawn, strict=True):
        expected = one.columns["confidence"]
        labels = [each["output"] for each in many.columns["outputs"]]
        share = labels.count(one.columns["output"]) / len(labels)
        deviation = (expected * (1 - expected) / len(labels)) ** 0.5
        assert abs(share - expected) <= 4 * deviation + 0.01


def test_samples_follow_from_the_seed_and_differ_by_it(vllm_engine: Engine) -> None:
    def outputs(seed: int) -> list[list[str]]:
        job = free(sampling={"n": 4, "temperature": 2.0, "max_tokens": 12, "seed": seed})
        found = answers(vllm_engine, job, {"text": TEXTS})
        return [[each["output"] for each in one.columns["outputs"]] for one in found]

    first = outputs(1)
    assert outputs(1) == first
    assert outputs(2) != first
    assert all(len(set(samples)) > 1 for samples in first)


def test_a_row_keeps_to_its_own_bound(vllm_engine: Engine) -> None:
    job = free(
        sampling={"max_tokens": 12, "ignore_eos": True},
        sampling_columns={"max_tokens": "longest"},
    )
    found = answers(vllm_engine, job, {"text": TEXTS, "longest": [3, None, 50]})
    assert [each.output_tokens for each in found] == [3, 12, 12]


def test_jobs_with_different_numbers_do_not_spoil_each_other(vllm_engine: Engine) -> None:
    columns = {"text": TEXTS * 4}
    numbers, sure = free(sampling={"max_tokens": 6, "logprobs": 3}), task(RECIPE)
    alone = [answers(vllm_engine, job, columns) for job in (numbers, sure)]
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(answers, vllm_engine, job, columns) for job in (numbers, sure)]
        together = [each.result() for each in both]
    for name, before, after in zip(("logprobs", "confidence"), alone, together, strict=True):
        for one, other in zip(before, after, strict=True):
            if name == "confidence":
                assert one.columns[name] == pytest.approx(other.columns[name], abs=0.02)
                continue
            # Later tokens may differ: what a model computes depends a little on the rows beside.
            here, there = one.columns[name][0], other.columns[name][0]
            assert there["logprob"] == pytest.approx(here["logprob"], abs=0.05)
            assert all(len(each["top"]) == 3 for each in other.columns[name])


def test_numbers_of_a_held_answer_are_of_tokens_that_it_allows(vllm_engine: Engine) -> None:
    job = free(sampling={"logprobs": 5}, output={"choice": ["positive", "negative"]})
    for outcome in answers(vllm_engine, job, {"text": TEXTS}):
        for each in outcome.columns["logprobs"]:
            assert all(math.isfinite(top["logprob"]) for top in each["top"])


def test_more_numbers_than_the_vocabulary_has_tokens_are_refused(vllm_engine: Engine) -> None:
    job = free(sampling={"max_tokens": 2, "logprobs": 500_000})
    with pytest.raises(
        JobRefused, match="asks for 500000 logprobs of a token, and the model's voc"
    ):
        answers(vllm_engine, job, {"text": TEXTS})


@pytest.mark.parametrize("samples", [1, 3])
def test_a_stopped_row_leaves_the_engine_with_its_samples(
    vllm_engine: Engine, samples: int
) -> None:
    outcomes: dict[int, Outcome] = {}
    sampling = {"n": samples, "temperature": 1.0, "max_tokens": 400, "ignore_eos": True}
    job = free(sampling=sampling)
    requests, _ = Renderer(job).render(pa.table({"text": TEXTS}), range(len(TEXTS)))
    work = Work(job, requests, 600, outcomes.__setitem__, resolved=dict(vllm_engine.resolve(job)))
    running = vllm_engine.start(work)
    work.stop()
    wait([running], 60)
    assert not outcomes
    processor = vllm_engine.llm.output_processor  # type: ignore[attr-defined]
    wait_until(lambda: not processor.has_unfinished_requests(), 60, "an engine without a row")
    again = answers(vllm_engine, task(RECIPE), {"text": TEXTS})
    assert all(isinstance(each, Answer) for each in again)
