"""The vLLM engine, for real: answers, refusals, constraints, stop, and reuse afterwards."""

import json
import re
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from nightshift.common.allocation.load_errors import Concern, case_of
from nightshift.common.errors import EngineLoadFailed, JobRefused, Permanent, Retryable
from nightshift.common.spec import EmbedTask, GenerateTask, VllmEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Refusal, Request, Work
from tests.support.fleet import wait_until
from tests.support.models import MODEL

SENTIMENTS = ["positive", "neutral", "negative"]


def task(**fields: Any) -> GenerateTask:
    return GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}", **fields})


def ask(
    engine: Engine, job: GenerateTask, texts: list[str], seconds: float = 60
) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}

    def emit(position: int, outcome: Outcome) -> None:
        assert position not in outcomes, "one outcome a row"
        outcomes[position] = outcome

    requests = [
        Request(index, messages=[{"role": "user", "content": text}], is_plain_prompt=True)
        for index, text in enumerate(texts)
    ]
    engine.start(Work(job, requests, seconds, emit)).result()
    return outcomes


def texts(outcomes: dict[int, Outcome]) -> list[str]:
    answers = [outcome for _, outcome in sorted(outcomes.items())]
    assert all(isinstance(answer, Answer) for answer in answers), answers
    return [str(answer.columns["output"]) for answer in answers if isinstance(answer, Answer)]


def test_every_row_of_more_than_it_runs_at_once_has_an_answer(vllm_engine: Engine) -> None:
    job = task(output={"choice": SENTIMENTS}, sampling={"max_tokens": 8})
    outcomes = ask(vllm_engine, job, [f"Review {n}: I love it." for n in range(50)])
    assert sorted(outcomes) == list(range(50))
    assert set(texts(outcomes)) <= set(SENTIMENTS)


def test_tokens_are_counted_as_the_engine_counts_them(vllm_engine: Engine) -> None:
    job = task(sampling={"max_tokens": 5, "ignore_eos": True})
    (answer,) = ask(vllm_engine, job, ["hello there"]).values()
    assert isinstance(answer, Answer)
    assert answer.output_tokens == 5
    assert answer.prompt_tokens > 2
    assert answer.finish_reason == "length"


def test_a_prompt_longer_than_the_model_takes_is_refused_alone(vllm_engine: Engine) -> None:
    job = task(output={"choice": SENTIMENTS}, sampling={"max_tokens": 8})
    outcomes = ask(vllm_engine, job, ["fine", "word " * 200_000, "fine"])
    long = outcomes.pop(1)
    assert isinstance(long, Refusal)
    assert long.kind is RowErrorKind.TOO_LONG
    assert len(texts(outcomes)) == 2


def test_empty_text_and_nuls_are_good_rows(vllm_engine: Engine) -> None:
    job = task(output={"choice": SENTIMENTS}, sampling={"max_tokens": 8})
    assert len(texts(ask(vllm_engine, job, ["", "a\x00b", "\ufffd", "🌙"]))) == 4


def test_json_that_is_cut_off_is_a_refusal_with_its_tokens(vllm_engine: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    job = task(output={"json_schema": schema}, sampling={"max_tokens": 2})
    (outcome,) = ask(vllm_engine, job, ["x"]).values()
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TRUNCATED
    assert outcome.output_tokens == 2


def test_json_schema_regex_and_grammar_hold_the_answer(vllm_engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": SENTIMENTS}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    by_schema = task(output={"json_schema": schema}, sampling={"max_tokens": 60})
    by_regex = task(output={"regex": "[a-c]{3,5}"}, sampling={"max_tokens": 20})
    by_grammar = task(output={"grammar": 'root ::= "yes" | "no"'}, sampling={"max_tokens": 20})
    assert json.loads(texts(ask(vllm_engine, by_schema, ["x"]))[0])["mood"] in SENTIMENTS
    assert set(texts(ask(vllm_engine, by_regex, ["x"]))[0]) <= set("abc")
    assert texts(ask(vllm_engine, by_grammar, ["x"]))[0] in ("yes", "no")


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"grammar": "root ::= none"}, 'Rule "none" is not defined'),
        ({"json_schema": {"type": "integer", "multipleOf": 2}}, "not supported by xgrammar"),
    ],
)
def test_a_form_that_vllm_cannot_hold_ends_the_job_not_row_after_row(
    vllm_engine: Engine, form: dict[str, Any], says: str
) -> None:
    job = task(output=form)
    with pytest.raises(JobRefused, match=f"^vLLM takes no row of this task: .*{says}"):
        ask(vllm_engine, job, ["x", "y"])


def test_what_says_nothing_of_the_task_ends_no_job(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightshift.worker.engines.vllm import verify

    def make(*_: object) -> NoReturn:
        raise ImportError("this machine lacks a library")

    monkeypatch.setattr(verify, "sampling_params", make)
    with pytest.raises(Retryable, match="ImportError: this machine lacks a library"):
        ask(vllm_engine, task(), ["x"])


def test_a_task_that_an_engine_was_not_loaded_for_is_named(vllm_engine: Engine) -> None:
    embed = EmbedTask(kind="embed", text="t")
    with pytest.raises(Permanent, match=r"loaded for another task\.kind than embed"):
        vllm_engine.start(Work(embed, [], 60, pytest.fail))


def test_a_job_with_images_ends_where_the_model_takes_only_text(vllm_engine: Engine) -> None:
    parts = [{"type": "image", "column": "photo"}]
    job = GenerateTask.model_validate(
        {"kind": "generate", "messages": [{"role": "user", "content": parts}]}
    )
    with pytest.raises(JobRefused, match="takes only text"):
        ask(vllm_engine, job, ["x"])


def test_a_form_that_only_fails_inside_of_vllm_is_no_empty_answer(vllm_engine: Engine) -> None:
    (outcome,) = ask(vllm_engine, task(output={"grammar": "root ::= root"}), ["x"]).values()
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.REFUSED
    assert len(ask(vllm_engine, task(sampling={"max_tokens": 2}), ["y"])) == 1


WORDS = 'root ::= "x" ("a" | "b" | "c")+'


def test_rows_that_were_cut_off_are_asked_again_with_other_seeds(vllm_engine: Engine) -> None:
    rows = [f"{mood} number {n}" for n in range(8) for mood in ("I love it", "It broke")]
    sampling = {"max_tokens": 8}
    once = ask(vllm_engine, task(output={"grammar": WORDS}, sampling=sampling), rows)
    again = {"grammar": WORDS, "on_invalid": {"retries": 6, "temperature": 1.5}}
    tried = ask(vllm_engine, task(output=again, sampling=sampling), rows)
    cut = [row for row, outcome in once.items() if isinstance(outcome, Refusal)]
    mended = [row for row in cut if isinstance(tried[row], Answer)]
    assert mended
    for row in once.keys() - set(cut):
        assert tried[row] == once[row]
    for row in cut:
        assert tried[row].prompt_tokens % once[row].prompt_tokens == 0
        assert tried[row].prompt_tokens > once[row].prompt_tokens
        assert tried[row].output_tokens > once[row].output_tokens
    given = {str(tried[row].columns["output"]) for row in mended}  # type: ignore[union-attr]
    assert all(re.fullmatch("x[abc]+", text) for text in given)
    assert len(given) > 1


def test_a_stop_string_that_cuts_an_answer_leaves_one_that_does_not_fit(
    vllm_engine: Engine,
) -> None:
    cut = {"max_tokens": 30, "stop": ["oo", "a"]}
    words = {"grammar": 'root ::= "good" | "bad"'}
    for form in (words, {"regex": "good|bad"}, {"choice": ["good", "bad"]}):
        (outcome,) = ask(vllm_engine, task(output=form, sampling=cut), ["I love it"]).values()
        assert isinstance(outcome, Refusal)
        assert outcome.kind is RowErrorKind.INVALID_OUTPUT


def test_a_sampled_row_repeats_and_its_neighbour_differs(vllm_engine: Engine) -> None:
    job = task(sampling={"temperature": 2.0, "max_tokens": 24, "ignore_eos": True, "seed": 7})
    first = texts(ask(vllm_engine, job, ["same text"] * 3))
    second = texts(ask(vllm_engine, job, ["same text"] * 3))
    assert first == second
    assert len(set(first)) > 1


def test_a_row_over_its_deadline_is_refused_and_the_engine_goes_on(vllm_engine: Engine) -> None:
    slow = task(sampling={"max_tokens": 450, "ignore_eos": True})
    (outcome,) = ask(vllm_engine, slow, ["x"], seconds=0.05).values()
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TIMEOUT
    assert len(ask(vllm_engine, task(sampling={"max_tokens": 2}), ["y"])) == 1


def test_a_stop_ends_the_work_and_the_engine_serves_others(vllm_engine: Engine) -> None:
    outcomes: dict[int, Outcome] = {}
    job = task(sampling={"max_tokens": 450, "ignore_eos": True})
    requests = [
        Request(n, messages=[{"role": "user", "content": "x"}], is_plain_prompt=True)
        for n in range(64)
    ]
    work = Work(job, requests, 600, outcomes.__setitem__)
    future = vllm_engine.start(work)
    work.stop()
    with pytest.raises(CancelledError):
        future.result(60)
    assert len(outcomes) < 64
    assert len(ask(vllm_engine, task(sampling={"max_tokens": 2}), ["y"])) == 1


def test_batches_of_several_threads_share_the_engine(vllm_engine: Engine) -> None:
    job = task(sampling={"max_tokens": 20, "ignore_eos": True})
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(ask(vllm_engine, job, ["x"] * 10))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("caching", "size", "tokens"), [(True, 4096, 4096), (True, None, None), (False, 4096, 0)]
)
def test_an_engine_without_a_prefix_cache_keeps_no_tokens(
    caching: bool, size: int | None, tokens: int | None
) -> None:
    from nightshift.worker.engines.vllm.engine import cache_tokens

    cache = SimpleNamespace(enable_prefix_caching=caching, kv_cache_size_tokens=size)
    assert cache_tokens(cast(Any, cache)) == tokens


def test_vllm_keeps_no_figures_that_nobody_asked_for(vllm_engine: Engine) -> None:
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    (logger,) = cast(Any, vllm_engine).llm.logger_manager.stat_loggers
    assert "__init__" in vars(type(logger)), "vLLM's own would be made with its gauges"
    assert not hasattr(logger, "gauge_scheduler_running")
    assert isinstance(logger, PrometheusStatLogger)


def test_an_idle_engine_is_not_stalled(vllm_engine: Engine) -> None:
    ask(vllm_engine, task(sampling={"max_tokens": 2}), ["y"])
    wait_until(lambda: not vllm_engine.stalled_seconds(), what="the engine to be idle")


@pytest.mark.parametrize(
    ("model", "args", "says"),
    [
        ("/no/such/folder", {}, "/no/such/folder"),
        (str(MODEL), {"no_such_argument": 1}, "no_such_argument"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_sentence(
    model: str, args: dict[str, Any], says: str
) -> None:
    from nightshift.worker.engines.vllm.engine import VllmEngine

    with pytest.raises(EngineLoadFailed, match=says):
        VllmEngine.load(VllmEngineSpec(backend="vllm", model=model, args=args), None)


def test_what_vllm_says_of_missing_gpus_is_no_matter_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a job of four GPUs failed while its pool had only machines with one."""
    from vllm import platforms
    from vllm.config import DeviceConfig, ParallelConfig, parallel
    from vllm.platforms.interface import UnspecifiedPlatform

    from nightshift.worker.engines.vllm import engine

    class OneGpu(UnspecifiedPlatform):
        device_type = "cuda"

        def is_cuda(self) -> bool:
            return True

        def is_cuda_alike(self) -> bool:
            return True

        def device_count(self) -> int:
            return 1

    args = {"tensor_parallel_size": 4}
    spec = VllmEngineSpec(backend="vllm", model=str(MODEL), args=args)

    def load(platform: UnspecifiedPlatform) -> EngineLoadFailed:
        monkeypatch.setattr(platforms, "_current_platform", platform)
        monkeypatch.setattr(parallel, "current_platform", platform)
        monkeypatch.setattr(engine, "current_platform", platform)
        with pytest.raises(EngineLoadFailed) as failed:
            engine.VllmEngine.load(spec, None)
        return failed.value

    assert case_of(load(OneGpu())).concern is Concern.WORKER
    with pytest.raises(ValueError, match=r"World size \(4\) is larger") as own:
        ParallelConfig(**args)
    assert case_of(own.value).concern is Concern.JOB, "what the load of before ended with"
    assert case_of(load(UnspecifiedPlatform())).concern is Concern.WORKER
    with pytest.raises(RuntimeError, match="Failed to infer device type") as own_too:
        DeviceConfig()
    assert case_of(own_too.value).concern is Concern.JOB, "what the load of before ended with"


def test_a_row_ends_at_its_own_length_and_never_after_max_tokens(vllm_engine: Engine) -> None:
    job = task(sampling={"max_tokens": 6, "ignore_eos": True, "max_tokens_column": "budget"})
    message = [{"role": "user", "content": "x"}]
    lengths = [2, None, 60]
    requests = [
        Request(place, messages=message, is_plain_prompt=True, max_tokens=length)
        for place, length in enumerate(lengths)
    ]
    outcomes: dict[int, Outcome] = {}
    vllm_engine.start(Work(job, requests, 600, outcomes.__setitem__)).result()
    assert [outcomes[place].output_tokens for place in range(3)] == [2, 6, 6]
