"""How a row is sampled, and which samples are drawn again."""

import dataclasses
import hashlib
from collections.abc import Awaitable, Callable, Sequence

from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.common.text import counted
from nightshift.worker.engines.protocol import Outcome, Refusal, Request, usage_of, with_usage
from nightshift.worker.engines.samples import row_outcome

RESAMPLED = (RowErrorKind.TRUNCATED, RowErrorKind.INVALID_OUTPUT)

TEMPERATURE = 0.7
"""For further samples of a greedy task, which would give the same answer again."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowSampling:
    """How a row is sampled, `n` times; `seed` is None for greedy sampling. Sample k has the seed + k. `is_free`
    says that nothing holds the answer to the form of the spec.
    """

    temperature: float
    seed: int | None
    n: int = 1
    is_free: bool = False


UNSAMPLED = RowSampling(0.0, None)
"""For rows that are not sampled, or whose body says how."""

HELD = -1
"""The number of the try behind a free one: as the first, with seeds of its own, since a sample that is drawn again
with the seed of another one is mostly a copy of it.
"""

SampleOnce = Callable[[RowSampling], Awaitable[Sequence[Outcome]]]
"""Runs the model once for n samples, and checks each."""


async def sample_until_valid(
    task: GenerateTask, request: Request, sample_once: SampleOnce
) -> Outcome:
    """The row's outcome: its samples, of which those that are not valid were drawn again as often as the task
    says, with the tokens of all that were drawn. Where the spec holds answers on_retry, the first try is free, and
    a second one that is held does not count among the retries.
    """
    on_invalid = task.output and task.output.on_invalid
    n = task.sampling.n
    if n > 1 and row_sampling(task, request, 0, n).temperature == 0:
        return Refusal(
            RowErrorKind.RENDER_ERROR,
            f"the row's own temperature is 0, at which its {counted(n, 'sample')} would be equal",
        )
    is_free = task.output is not None and task.output.hold == "on_retry"
    first = dataclasses.replace(row_sampling(task, request, 0, n), is_free=is_free)
    samples = list(await sample_once(first))
    retries = range(1, 1 + (on_invalid.retries if on_invalid else 0))
    for tried, number in enumerate([*([HELD] if is_free else ()), *retries], 1):
        failed = [at for at, each in enumerate(samples) if _is_drawn_again(each)]
        if not failed:
            break
        again = await sample_once(row_sampling(task, request, number, len(failed)))
        for at, outcome in zip(failed, again, strict=True):
            samples[at] = _with_spent(outcome, samples[at], tried)
    return row_outcome(task, samples)


def _is_drawn_again(outcome: Outcome) -> bool:
    return isinstance(outcome, Refusal) and outcome.kind in RESAMPLED


def _with_spent(outcome: Outcome, before: Outcome, tried: int) -> Outcome:
    """The outcome of a sample that was drawn again after so many tries, with the tokens of before."""
    if isinstance(outcome, Refusal):
        message = f"in {tried + 1} tries, at last: {outcome.message}"
        outcome = dataclasses.replace(outcome, message=message)
    return with_tokens(outcome, before)


def with_tokens(outcome: Outcome, before: Outcome) -> Outcome:
    """The outcome with the tokens of one that it takes the place of."""
    return with_usage(outcome, usage_of(before) + usage_of(outcome))


def row_seed(seed: int, row_index: int, number: int = 0) -> int:
    """The seed of a sampled row: a hash of the job's seed, the row's index and the try."""
    text = f"{seed}:{row_index}" + (f":{number}" if number else "")
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def row_sampling(task: GenerateTask, request: Request, number: int, n: int = 1) -> RowSampling:
    """How a try of a row is sampled: by the row's own columns, else by the task.

    The seeds of different rows are n apart, so that no sample of one row has the seed of another's.
    """
    on_invalid = task.output and task.output.on_invalid
    temperature = float(request.sampling.get("temperature", task.sampling.temperature))
    if number > 0 and on_invalid:
        own = on_invalid.temperature
        temperature = (temperature or TEMPERATURE) if own is None else own
    if temperature <= 0:
        return RowSampling(temperature, None, n)
    own_seed = request.sampling.get("seed")
    if own_seed is not None and not number:
        return RowSampling(temperature, int(own_seed), n)
    # The row's own seed stands for its place, so that equal rows with other seeds differ in each try.
    base = task.sampling.seed if own_seed is None else int(own_seed)
    seed = row_seed(base, request.row_index, number)
    apart = task.sampling.n
    return RowSampling(temperature, seed - seed % apart, n)


def sample_of(sampling: RowSampling, number: int) -> RowSampling:
    """How one of several samples is drawn by itself, from a server that does not draw several at once."""
    seed = None if sampling.seed is None else sampling.seed + number
    return dataclasses.replace(sampling, n=1, seed=seed)


def drawn_again(sampling: RowSampling, request: Request, n: int) -> RowSampling:
    """The same sampling for so many of a row's samples, with seeds that none of them had."""
    if sampling.seed is None or sampling.n == 1:
        return dataclasses.replace(sampling, n=n)
    seed = row_seed(sampling.seed, request.row_index, HELD)
    return dataclasses.replace(sampling, n=n, seed=seed - seed % n)
