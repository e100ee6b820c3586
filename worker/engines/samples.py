"""The samples of one row as one outcome: a list of answers, and the majority's where the samples vote."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from nightshift.common.spec import OUTPUTS, VOTE_SHARE, GenerateTask
from nightshift.common.spec.json_schema import Scalar
from nightshift.common.spec.tasks.generate import CHOICE, PARSED
from nightshift.common.text import counted
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Usage, usage_of, with_usage
from nightshift.worker.engines.structured import strict_json, typed


def row_outcome(task: GenerateTask, samples: Sequence[Outcome]) -> Outcome:
    """The outcome of a row from those of its samples, each with its own tokens.

    One sample is the outcome itself. Of several each becomes an element of `outputs`, in order; a failed one
    is null. A row fails when all its samples do, with the reason of the first.
    """
    if task.sampling.n == 1:
        (outcome,) = samples
        return outcome
    spent = sum(map(usage_of, samples), Usage())
    if all(isinstance(each, Refusal) for each in samples):
        first = samples[0]
        assert isinstance(first, Refusal)
        message = (
            f"none of {counted(len(samples), 'sample')} has an answer; the first: {first.message}"
        )
        return with_usage(dataclasses.replace(first, message=message, columns={}), spent)
    scalars = task.parsed
    outputs = [_sample(each, scalars) if isinstance(each, Answer) else None for each in samples]
    columns: dict[str, Any] = {OUTPUTS: outputs}
    for each in samples:
        if "prompt_logprobs" in each.columns:
            columns["prompt_logprobs"] = each.columns["prompt_logprobs"]
            break
    if task.vote is not None:
        columns |= _voted(task.vote, scalars, outputs)
    return with_usage(Answer(columns=columns), spent)


def _sample(answer: Answer, scalars: dict[str, Scalar] | None) -> dict[str, Any]:
    columns = {name: each for name, each in answer.columns.items() if name != "prompt_logprobs"}
    if scalars is not None:
        columns[PARSED] = typed(strict_json(columns["output"]), scalars)
    return {
        "output_tokens": answer.output_tokens,
        **columns,
        "finish_reason": answer.finish_reason,
    }


def _voted(
    vote: str, scalars: dict[str, Scalar] | None, outputs: Sequence[dict[str, Any] | None]
) -> dict[str, Any]:
    """The first sample with the answer that most samples gave, and their share of all samples; of equal
    numbers the answer that came first.
    """
    ballots: dict[Any, list[dict[str, Any]]] = {}
    for sample in outputs:
        if sample is not None:
            said = sample["output"] if vote == CHOICE and scalars is None else sample[PARSED][vote]
            ballots.setdefault(said, []).append(sample)
    most = max(ballots.values(), key=len)
    return {"output": most[0]["output"], VOTE_SHARE: len(most) / len(outputs)}
