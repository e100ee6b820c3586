"""A row that is asked again: its answer was cut off or does not fit."""

import dataclasses
import hashlib
from collections.abc import Awaitable, Callable

from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Outcome, Refusal

ASKED_AGAIN = (RowErrorKind.TRUNCATED, RowErrorKind.INVALID_OUTPUT)

TEMPERATURE = 0.7
"""Of further tries of a greedy task, which would give the same answer again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Try:
    """How a row is asked this time; `number` is 0 the first time, `seed` None where it is greedy."""

    number: int
    temperature: float
    seed: int | None


async def answered(
    task: GenerateTask, row_index: int, ask: Callable[[Try], Awaitable[Outcome]]
) -> Outcome:
    """The first answer that fits, or the last try's refusal; the tokens of all tries are its own.

    `ask` asks the model once, as the Try says, and checks what comes back.
    """
    retries = 0
    if task.output is not None and task.output.on_invalid is not None:
        retries = task.output.on_invalid.retries
    prompt_tokens = output_tokens = 0
    for number in range(retries + 1):
        outcome = await ask(_try(task, row_index, number))
        prompt_tokens += outcome.prompt_tokens
        output_tokens += outcome.output_tokens
        if not isinstance(outcome, Refusal) or outcome.kind not in ASKED_AGAIN:
            break
    if isinstance(outcome, Refusal) and number:
        said = f"in {number + 1} tries, at last: {outcome.message}"
        outcome = dataclasses.replace(outcome, message=said)
    return dataclasses.replace(outcome, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def row_seed(seed: int, row_index: int, number: int = 0) -> int:
    """The seed of a sampled row: a hash of the job's seed, its place in the dataset and the try."""
    said = f"{seed}:{row_index}" + (f":{number}" if number else "")
    digest = hashlib.blake2b(said.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _try(task: GenerateTask, row_index: int, number: int) -> Try:
    temperature = task.sampling.temperature
    if number:
        assert task.output is not None
        assert task.output.on_invalid is not None
        own = task.output.on_invalid.temperature
        temperature = (temperature or TEMPERATURE) if own is None else own
    seed = row_seed(task.sampling.seed, row_index, number) if temperature > 0 else None
    return Try(number, temperature, seed)
