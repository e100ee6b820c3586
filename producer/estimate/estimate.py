"""What a job will take before it runs: prompts from a sample, speed from what such engines did."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any

from nightshift.common.ledger import Ledger, spending
from nightshift.common.ledger.spending import SimilarJob
from nightshift.common.settings import Settings
from nightshift.common.spec import STORED, GenerateTask, JobSpec, OpenaiEngineSpec
from nightshift.common.text import money
from nightshift.producer.estimate import forecast
from nightshift.producer.estimate.forecast import Prices, Range
from nightshift.producer.estimate.prompt_lengths import Prompts, prompts
from nightshift.producer.estimate.row_sample import sample_rows
from nightshift.producer.submit.planner import Plan
from nightshift.producer.submit.submit import survey

SAMPLE_ROWS = 1_000
"""Prompts that are counted: the mean of so many is known to a few percent."""

SAMPLE_SEED = 0

FULL_WINDOWS = 4
"""With fewer rows than so many windows an engine was filling and emptying for most of its time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What engines of the same key did: `pace` in rows a second of one engine.

    `output_tokens` of a row are known where they had the same task. `window_rows` is what one
    holds in flight; 0 where no child lives.
    """

    source: str
    rows: int
    pace: Range | None
    output_tokens: Range | None
    window_rows: int


@dataclass(slots=True)
class Estimate:
    """What is expected of a job; None where nothing tells.

    Tokens are those of one row, `engine_seconds` and `cost` those of the whole job, `seconds` from
    the start to the end with `workers`.
    """

    name: str
    rows: int
    batches: int
    batch_rows: int
    files: int
    prompts: Prompts
    prompt_tokens: Range | None
    output_tokens: Range | None
    output_source: str
    measured: Measured | None
    workers: int
    workers_source: str
    engine_seconds: Range | None
    has_price: bool
    cost: Range | None
    budget: float | None
    seconds: Range | None
    made_at: datetime
    notes: list[str] = field(default_factory=list)


def estimate(
    spec: JobSpec,
    settings: Settings,
    ledger: Ledger | None,
    *,
    workers: int | None = None,
    pilot: int | None = None,
) -> Estimate:
    """Plans the job, counts the prompts of a sample and looks for what such engines did.

    `pilot` is a job of the ledger: then only that one counts. Without a `ledger` nothing is
    measured. Without a pilot the output directory is neither looked at nor written to. Raises
    BadInput for what a submit would refuse in the input.
    """
    own = TemporaryDirectory(prefix="nightshift-") if pilot is None else nullcontext()
    with own as copies:
        spec, plan = survey(spec, settings, copies=copies)
        found = prompts(spec, sample_rows(plan, spec, SAMPLE_ROWS, SAMPLE_SEED))
    measured, living = (None, 0) if ledger is None else _measured(ledger, spec, pilot)
    return _estimate(spec, plan, found, measured, _workers(spec, workers, living))


def _workers(spec: JobSpec, said: int | None, living: int) -> tuple[int, str]:
    if said is not None:
        return said, "as you say"
    if living:
        return living, f"living in the pool {spec.pool}"
    return 1, "none lives now: --workers says how many"


def _measured(ledger: Ledger, spec: JobSpec, pilot: int | None) -> tuple[Measured | None, int]:
    """What was measured, and how many children of the pool live."""
    task = spec.task.model_dump_json(by_alias=True, context=STORED)
    with ledger.transaction() as connection:
        living, window_rows = spending.slots(connection, spec.pool)
        found = spending.similar_jobs(connection, spec.pool, spec.engine_key, task, only=pilot)
        alike = [each for each in found if each.same_task] or found
        commits = spending.commits_of(connection, [each.job for each in alike])
    if not commits:
        return None, living
    same = all(each.same_task for each in alike)
    measured = Measured(
        source=_source(alike, pilot is not None, same=same),
        rows=sum(rows for rows, _, _ in commits),
        pace=forecast.ratio_range([(rows, seconds) for rows, seconds, _ in commits]),
        output_tokens=forecast.ratio_range([(tokens, rows) for rows, _, tokens in commits])
        if same
        else None,
        window_rows=window_rows,
    )
    return measured, living


def _source(alike: Sequence[SimilarJob], is_pilot: bool, *, same: bool) -> str:
    if is_pilot:
        return f"the pilot (job {alike[0].job})"
    jobs = f"job {alike[0].job}" if len(alike) == 1 else f"{len(alike)} jobs"
    return f"{jobs} with this engine" + ("" if same else ", of another task")


def _estimate(
    spec: JobSpec,
    plan: Plan,
    found: Prompts,
    measured: Measured | None,
    workers: tuple[int, str],
) -> Estimate:
    rows = plan.rows_total
    share = found.sampled / rows
    prompt_tokens = forecast.mean_range(found.run, share) if len(found.lengths) else None
    output_tokens, source = _output_tokens(spec, measured)
    pace = measured.pace if measured else None
    engine_seconds = pace.under(rows) if pace else None
    seconds = engine_seconds.times(1 / workers[0]) if engine_seconds else None
    limited = _limited(spec, rows, prompt_tokens, output_tokens)
    if seconds is not None and limited is not None:
        seconds = seconds.at_least(limited)
    made = Estimate(
        name=spec.name,
        rows=rows,
        batches=plan.batches_total,
        batch_rows=spec.batch.rows,
        files=sum(file.rows > 0 for file in plan.files),
        prompts=found,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_source=source,
        measured=measured,
        workers=workers[0],
        workers_source=workers[1],
        engine_seconds=engine_seconds,
        has_price=spec.engine.has_price,
        cost=_cost(spec, rows, engine_seconds, prompt_tokens, output_tokens),
        budget=spec.limits.budget,
        seconds=seconds,
        made_at=datetime.now(UTC).astimezone(),
        notes=list(found.notes),
    )
    made.notes += _notes(spec, made)
    if limited is not None:
        least = timedelta(seconds=round(limited.low))
        made.notes.append(f"the engine's rate limits alone take {least}, however many workers")
    return made


def _limited(
    spec: JobSpec, rows: int, prompt_tokens: Range | None, output_tokens: Range | None
) -> Range | None:
    """Seconds that the rate limits of a remote engine allow no less of."""
    if not isinstance(spec.engine, OpenaiEngineSpec):
        return None
    least = None
    if spec.engine.requests_per_minute is not None:
        least = Range.exactly(60 * rows / spec.engine.requests_per_minute)
    if spec.engine.tokens_per_minute is not None and prompt_tokens and output_tokens:
        tokens = (prompt_tokens + output_tokens).times(60 * rows / spec.engine.tokens_per_minute)
        least = tokens if least is None else tokens.at_least(least)
    return least


def _output_tokens(spec: JobSpec, measured: Measured | None) -> tuple[Range | None, str]:
    """Output tokens of a row, and who says so."""
    if spec.task.kind == "function" or spec.task.runner != "generate":
        return Range.exactly(0), "this task writes none"
    if measured is not None and measured.output_tokens is not None:
        return measured.output_tokens, measured.source
    if isinstance(spec.task, GenerateTask):
        most = spec.task.sampling.max_tokens
        return Range(0, None, most), "not measured: anything up to max_tokens"
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
    prices = Prices(
        engine.price_per_hour,
        engine.price_per_million_prompt_tokens,
        engine.price_per_million_output_tokens,
    )
    tokens = forecast.token_money(rows, prompt_tokens, output_tokens, prices)
    if prices.hour is None or tokens is None:
        return tokens
    return None if engine_seconds is None else tokens + engine_seconds.times(prices.hour / 3600)


def _notes(spec: JobSpec, made: Estimate) -> list[str]:
    notes = []
    measured = made.measured
    if measured is None:
        notes.append(
            "speed is not measured: no job with this engine has run in this ledger; "
            "`--pilot 200` runs a sample now"
        )
    elif measured.pace is None:
        notes.append("speed is not measured: what ran was over before a clock could tell")
    elif not measured.pace.low:
        notes.append("the speed varies too much to say the time: a larger --pilot tells")
    elif measured.pace.low == measured.pace.high:
        notes.append("too few commits to say how much the speed varies: a larger --pilot tells")
    if measured is not None and 0 < measured.rows < FULL_WINDOWS * measured.window_rows:
        notes.append(
            f"measured with {measured.rows:,} rows, and an engine holds {measured.window_rows:,} "
            "at once: a full one is faster"
        )
    if not spec.engine.has_price:
        notes.append("cost is not known: the spec has no engine.price_per_hour and no token price")
    elif spec.engine.price_per_hour is not None:
        notes.append("engine hours are those with work: loading models and idling come on top")
    budget = spec.limits.budget
    if budget is not None and made.cost is not None and made.cost.high > budget:
        sure = made.cost.low > budget
        notes.append(
            f"limits.budget {money(budget)} {'is not' if sure else 'may not be'} enough: the job would "
            "pause before it passes it"
        )
    return notes


def as_json(made: Estimate) -> dict[str, Any]:
    """The object of `estimate --json`: what the table says, null where nothing tells."""
    found = made.prompts
    lengths = found.lengths
    measured = made.measured
    return {
        "name": made.name,
        "rows": made.rows,
        "batches": made.batches,
        "batch_rows": made.batch_rows,
        "files": made.files,
        "prompts": {
            "sampled": found.sampled,
            "refused": found.refused,
            "why": found.why or None,
            "unit": None if not len(lengths) else "characters/4" if found.is_guess else "tokens",
            **percentiles(found),
            "longest_allowed": found.longest,
            "too_long": found.too_long,
            "histogram": [list(each) for each in forecast.bins(lengths)] if len(lengths) else [],
        },
        "prompt_tokens_a_row": _range(made.prompt_tokens),
        "output_tokens_a_row": _range(made.output_tokens),
        "output_tokens_from": made.output_source,
        "rows_per_engine_second": _range(measured.pace if measured else None),
        "measured_from": measured.source if measured else None,
        "rows_measured": measured.rows if measured else 0,
        "workers": made.workers,
        "workers_from": made.workers_source,
        "engine_seconds": _range(made.engine_seconds),
        "cost": _range(made.cost),
        "budget": made.budget,
        "seconds": _range(made.seconds),
        "finished_at": _ends(made),
        "notes": made.notes,
    }


def percentiles(found: Prompts) -> dict[str, int | None]:
    """p50, p90, p99 and the longest of the sample."""
    names = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    if not len(found.lengths):
        return dict.fromkeys(names)
    return {name: round(forecast.quantile(found.lengths, at)) for name, at in names.items()}


def _ends(made: Estimate) -> dict[str, str] | None:
    """When the job would be over if it began now."""
    if made.seconds is None:
        return None
    return {
        bound: (made.made_at + timedelta(seconds=seconds)).isoformat(timespec="seconds")
        for bound, seconds in asdict(made.seconds).items()
        if seconds is not None
    }


def _range(value: Range | None) -> dict[str, float | None] | None:
    return None if value is None else asdict(value)
