"""What a job will take before it runs: prompts from a sample, speed from earlier jobs."""

import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import spending
from nightshift.common.ledger.jobs.spending import Commit, SimilarJob
from nightshift.common.ranges import Range
from nightshift.common.settings import Settings
from nightshift.common.spec import STORED, GenerateTask, JobSpec, OpenaiEngineSpec
from nightshift.common.spec.tasks.sampling import THINKING_TOKENS
from nightshift.common.text import counted, left_out_rows, money
from nightshift.producer.estimate import forecast
from nightshift.producer.estimate.prompt_lengths import PromptLengths, measure_prompts
from nightshift.producer.estimate.row_sample import sample_rows
from nightshift.producer.external_sort.spill import copies_folder
from nightshift.producer.submit.arrange import arrange
from nightshift.producer.submit.arrange.cost import PassCost, pass_cost
from nightshift.producer.submit.arrange.savings import Worth
from nightshift.producer.submit.auto_args import filled_in
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.submit import survey, within_roots

SAMPLE_ROWS = 1_000
"""Size of the sample; the mean of so many prompts is known to a few percent."""

SAMPLE_SEED = 0

PILOT_BATCHES = 5
"""Batches of a function's pilot: fewer and larger ones than those of a model, since each call may cost time by itself.
The first has the start of the process in it and is left out, and the others tell how much the pace varies.
"""

SHORT_SECONDS = 1.0
"""A clock tells little about less engine time."""

LIKE_BATCHES = 1.5
"""Batches that are larger or smaller by no more than this count as batches of the same size."""

FULL_WINDOWS = 4
"""With fewer rows than so many windows, the window of an engine was not full most of the time."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """What engines with the same key did for the same task: `pace` is the rows a second of one engine.

    `output_tokens` is the mean of a row; `thoughts` is the mean number of
    output tokens that are thoughts. `window_rows` is the number of rows that one engine holds in flight; 0 where
    no worker lives. `seconds` are those of the engine, `batch_rows` the rows of a batch that was measured.
    """

    source: str
    rows: int
    pace: Range | None
    output_tokens: Range | None
    window_rows: int
    thoughts: float = 0.0
    seconds: float = 0.0
    batch_rows: float = 0.0


@dataclass(slots=True)
class Estimate:
    """What is expected of a job; None where a figure is not known.

    Tokens are those of one row, `engine_seconds` and `cost` those of the whole job, and `seconds`
    the time from the start to the end with so many `workers`. `order` is what an order of the rows
    would bring, `order_cost` what the pass over the rows would take.
    """

    spec: JobSpec
    rows: int
    batches: int
    files: int
    prompts: PromptLengths
    prompt_tokens: Range | None
    output_tokens: Range | None
    output_source: str
    measured: MeasuredSpeed | None
    workers: int
    workers_source: str
    engine_seconds: Range | None
    cost: Range | None
    seconds: Range | None
    made_at: datetime
    order: Worth | None = None
    order_cost: PassCost | None = None
    notes: list[str] = field(default_factory=list)


def estimate(
    spec: JobSpec,
    settings: Settings,
    ledger: Ledger | None,
    *,
    workers: int | None = None,
    pilot: int | None = None,
    tokenizes: bool = True,
) -> Estimate:
    """Plans the job, measures the prompts of a sample, and reads speeds from the ledger.

    With a `pilot`, the number of a job, only that job counts. Without a `ledger` the speed is not
    known. Without `tokenizes` no tokenizer of a model is loaded. Without a pilot the output directory is neither read nor written. Raises BadInput where
    a submit would refuse the input.
    """
    own = copies_folder() if pilot is None else nullcontext()
    if ledger is not None:
        spec = filled_in(ledger, spec)
    with own as copies, within_roots(settings, *([] if copies is None else [copies])):
        spec, plan = survey(spec, settings, copies=copies)
        prompts = measure_prompts(
            spec, sample_rows(plan, spec, SAMPLE_ROWS, SAMPLE_SEED), tokenizes=tokenizes
        )
        order = _order(ledger, spec, plan)
    measured, living = (None, 0) if ledger is None else _measured_speed(ledger, spec, pilot)
    source = (
        f"living in the pool {spec.pool}" if living else "none lives now: --workers says how many"
    )
    given = (living or 1, source) if workers is None else (workers, "as you say")
    cost = None if order is None else pass_cost(plan)
    return replace(_estimate(spec, plan, prompts, measured, given), order=order, order_cost=cost)


def _order(ledger: Ledger | None, spec: JobSpec, plan: Plan) -> Worth | None:
    """What `batch.arrange` would bring; None where no order is asked for, or none can be judged."""
    if spec.batch.arrange == "none":
        return None
    cache_tokens = None
    if ledger is not None:
        with ledger.transaction() as connection:
            cache_tokens = loads.cache_tokens(connection, spec.pool, spec.engine_key)
    with suppress(BadInput, SourceChanged):
        return arrange.judged(spec, plan, cache_tokens)
    return None


def _estimate(
    spec: JobSpec,
    plan: Plan,
    prompts: PromptLengths,
    measured: MeasuredSpeed | None,
    workers: tuple[int, str],
) -> Estimate:
    rows = plan.rows_total
    share = prompts.sampled / rows
    prompt_tokens = forecast.mean_range(prompts.computed, share) if len(prompts.lengths) else None
    output_tokens, source = _output_tokens(spec, measured)
    pace = measured.pace if measured else None
    engine_seconds = pace.under(rows) if pace else None
    seconds = engine_seconds.times(1 / workers[0]) if engine_seconds else None
    limited = _rate_limited(spec, rows, prompt_tokens, output_tokens)
    if seconds is not None and limited is not None:
        seconds = seconds.at_least(limited)
    made = Estimate(
        spec=spec,
        rows=rows,
        batches=plan.batches_total,
        files=sum(file.rows > 0 for file in plan.files),
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_source=source,
        measured=measured,
        workers=workers[0],
        workers_source=workers[1],
        engine_seconds=engine_seconds,
        cost=_cost(spec, rows, engine_seconds, prompt_tokens, output_tokens),
        seconds=seconds,
        made_at=datetime.now(UTC).astimezone(),
        notes=list(prompts.notes),
    )
    made.notes += _notes(spec, made)
    if plan.left_out:
        made.notes.append(left_out_rows(plan.left_out))
    if limited is not None:
        least = timedelta(seconds=round(limited.low))
        made.notes.append(f"the engine's rate limits alone take {least}, however many workers")
    return made


def _rate_limited(
    spec: JobSpec, rows: int, prompt_tokens: Range | None, output_tokens: Range | None
) -> Range | None:
    """The least seconds that the rate limits of a remote engine allow; None without limits."""
    if not isinstance(spec.engine, OpenaiEngineSpec):
        return None
    least = None
    if spec.engine.requests_per_minute is not None:
        least = Range.exactly(60 * rows / spec.engine.requests_per_minute)
    if spec.engine.tokens_per_minute is not None and prompt_tokens and output_tokens:
        tokens = (prompt_tokens + output_tokens).times(60 * rows / spec.engine.tokens_per_minute)
        least = tokens if least is None else tokens.at_least(least)
    return least


def _output_tokens(spec: JobSpec, measured: MeasuredSpeed | None) -> tuple[Range | None, str]:
    """Output tokens of a row, and the source of that figure."""
    if spec.task.kind == "function" or spec.task.runner != "generate":
        return Range.exactly(0), "this task writes none"
    if measured is not None and measured.output_tokens is not None:
        return measured.output_tokens, measured.source
    if isinstance(spec.task, GenerateTask):
        sampling = spec.task.sampling
        most = sampling.max_tokens * sampling.n
        source = "not measured: anything up to max_tokens"
        if sampling.n > 1:
            source += f", {counted(sampling.n, 'time')}"
        if spec.task.may_think and not sampling.has_max_tokens:
            source += f"; a model that thinks may write {THINKING_TOKENS:,}"
        return Range(0, None, most), source
    return None, "not measured: each request says its own max_tokens"


def _cost(
    spec: JobSpec,
    rows: int,
    engine_seconds: Range | None,
    prompt_tokens: Range | None,
    output_tokens: Range | None,
) -> Range | None:
    engine = spec.engine
    if not engine.has_price:
        return None
    tokens = forecast.token_money(
        rows,
        (engine.price_per_million_prompt_tokens, prompt_tokens),
        (engine.price_per_million_output_tokens, output_tokens),
    )
    hour = engine.price_per_hour
    if hour is None or tokens is None:
        return tokens
    return None if engine_seconds is None else tokens + engine_seconds.times(hour / 3600)


def _notes(spec: JobSpec, made: Estimate) -> list[str]:
    notes = []
    measured = made.measured
    if measured is None:
        notes.append(
            "speed is unknown: no job with this engine and task has run in this ledger; "
            "run `estimate --pilot 200`"
        )
    elif measured.pace is None:
        notes.append(
            "speed is unknown: the rows ended before a clock could tell; run a larger --pilot"
        )
    elif not measured.pace.low:
        notes.append("the speed varies too much to tell the time: run a larger --pilot")
    elif measured.pace.low == measured.pace.high:
        notes.append("too few commits to tell how much the speed varies: run a larger --pilot")
    if measured is not None and measured.pace is not None:
        notes += _notes_on_speed(spec, made, measured)
    if not spec.engine.has_price:
        notes.append("cost is not known: the spec has no engine.price_per_hour and no token price")
    elif spec.engine.price_per_hour is not None:
        notes.append("engine hours are those with work: loading models and idling come on top")
    budget = spec.limits.budget
    if budget is not None and made.cost is not None and made.cost.high > budget:
        sure = made.cost.low > budget
        notes.append(
            f"limits.budget {money(budget)} {'is not' if sure else 'might not be'} enough: the job would "
            "pause before it passes it"
        )
    return notes


def _notes_on_speed(spec: JobSpec, made: Estimate, measured: MeasuredSpeed) -> list[str]:
    """Return in what the measured batches differ from those of the job."""
    if spec.task.kind != "function":
        if not 0 < measured.rows < FULL_WINDOWS * measured.window_rows:
            return []
        return [
            f"measured with {counted(measured.rows, 'row')}, and an engine holds {measured.window_rows:,} "
            "at once: a full one is faster"
        ]
    notes = []
    if measured.seconds < SHORT_SECONDS:
        notes.append(f"measured in {measured.seconds:.2f} s of work only: run a larger --pilot")
    batch = made.rows / made.batches
    if not 1 / LIKE_BATCHES <= batch / measured.batch_rows <= LIKE_BATCHES:
        notes.append(
            f"measured in batches of {measured.batch_rows:,.0f} rows, and the job has {batch:,.0f} in each: "
            f"if a call costs time by itself, the speed differs; `--pilot {pilot_rows(batch)}` has such batches"
        )
    return notes


def pilot_rows(batch: float) -> int:
    """Return the rows of a pilot whose batches have the size of those of the job."""
    return math.ceil(PILOT_BATCHES * batch / 100) * 100


def _measured_speed(
    ledger: Ledger, spec: JobSpec, pilot: int | None
) -> tuple[MeasuredSpeed | None, int]:
    """The speed, None where no such engine ran, and how many workers of the pool live.

    `pilot` is a job of the ledger: then only that one counts.
    """
    task = spec.task.model_dump_json(by_alias=True, context=STORED)
    with ledger.transaction() as connection:
        living, window_rows = spending.slots(connection, spec.pool)
        similar = spending.similar_jobs(connection, spec.pool, spec.engine_key, task, only=pilot)
        commits = spending.commits_of(connection, [each.job for each in similar])
    if not commits:
        return None, living
    measured = MeasuredSpeed(
        source=_source(similar, is_pilot=pilot is not None),
        rows=sum(each.rows for each in commits),
        pace=forecast.ratio_range([(each.rows, each.engine_seconds) for each in _warm(commits)]),
        output_tokens=forecast.ratio_range([(each.output_tokens, each.rows) for each in commits]),
        window_rows=window_rows,
        thoughts=sum(each.reasoning_tokens for each in similar)
        / max(1, sum(each.rows_run for each in similar)),
        seconds=sum(each.engine_seconds for each in commits),
        batch_rows=sum(each.rows for each in commits) / sum(each.batches for each in commits),
    )
    return measured, living


def _warm(commits: Sequence[Commit]) -> Sequence[Commit]:
    """Return the commits without the first one of each child, which has the start of its work in it, if enough others
    are known.
    """
    warm = [each for each in commits if not each.is_first]
    return warm if len(warm) >= forecast.LEAST_BLOCKS else commits


def _source(similar: Sequence[SimilarJob], *, is_pilot: bool) -> str:
    if is_pilot:
        return f"the pilot (job {similar[0].job})"
    jobs = f"job {similar[0].job}" if len(similar) == 1 else f"{counted(len(similar), 'job')}"
    return f"{jobs} with this engine and task"
