"""Resampling: rows whose answer was cut off, or is no valid structured output, run again."""

import dataclasses
import hashlib
from collections.abc import Awaitable, Callable

from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Outcome, Refusal

RESAMPLED = (RowErrorKind.TRUNCATED, RowErrorKind.INVALID_OUTPUT)

TEMPERATURE = 0.7
"""For further samples of a greedy task, which would give the same answer again."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowSampling:
    """How a row is sampled; `seed` is None for greedy sampling."""

    temperature: float
    seed: int | None


async def sample_until_valid(
    task: GenerateTask, row_index: int, sample_once: Callable[[RowSampling], Awaitable[Outcome]]
) -> Outcome:
    """The first valid answer, or the last refusal, with the tokens of all samples.

    `sample_once` runs the model once and checks the answer.
    """
    retries = 0
    if task.output is not None and task.output.on_invalid is not None:
        retries = task.output.on_invalid.retries
    prompt_tokens = output_tokens = 0
    for number in range(retries + 1):
        outcome = await sample_once(_sampling(task, row_index, number))
        prompt_tokens += outcome.prompt_tokens
        output_tokens += outcome.output_tokens
        if not isinstance(outcome, Refusal) or outcome.kind not in RESAMPLED:
            break
    if isinstance(outcome, Refusal) and number:
        message = f"in {number + 1} tries, at last: {outcome.message}"
        outcome = dataclasses.replace(outcome, message=message)
    return dataclasses.replace(outcome, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def row_seed(seed: int, row_index: int, number: int = 0) -> int:
    """The seed of a sampled row: a hash of the job's seed, the row's index and the try."""
    text = f"{seed}:{row_index}" + (f":{number}" if number else "")
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _sampling(task: GenerateTask, row_index: int, number: int) -> RowSampling:
    temperature = task.sampling.temperature
    if number:
        assert task.output is not None
        assert task.output.on_invalid is not None
        own = task.output.on_invalid.temperature
        temperature = (temperature or TEMPERATURE) if own is None else own
    seed = row_seed(task.sampling.seed, row_index, number) if temperature > 0 else None
    return RowSampling(temperature, seed)
