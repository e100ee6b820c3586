"""The sampling of one row as vLLM takes it."""

from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from nightshift.common.spec import GenerateTask
from nightshift.worker.engines.protocol import Request
from nightshift.worker.engines.resampling import RowSampling

OWN = {
    "temperature",
    "seed",
    "stop",
    "max_tokens",
    "max_tokens_column",
    "n",
}
"""Fields of the spec's sampling that have a place of their own here."""


def sampling_params(
    task: GenerateTask, request: Request, row_sampling: RowSampling, longest: int | None = None
) -> SamplingParams:
    """The task's sampling and structured output for one row; the row's own values go before the task's.

    `longest` is the most tokens of an answer where it is not the task's own number.
    """
    sampling, output = task.sampling, task.output
    structured_outputs = None
    if output is not None:
        structured_outputs = StructuredOutputsParams(
            choice=output.choice,
            json=output.json_schema,
            regex=output.regex,
            grammar=output.grammar,
        )
    most = longest or sampling.max_tokens
    max_tokens = min(most, request.max_tokens or most)
    fields: dict[str, Any] = sampling.model_dump(exclude=OWN)
    fields |= {name: value for name, value in request.sampling.items() if name in fields}
    fields["min_tokens"] = min(fields["min_tokens"], max_tokens)
    return SamplingParams(
        **fields,
        n=row_sampling.n,
        temperature=row_sampling.temperature,
        max_tokens=max_tokens,
        stop=sampling.stop or None,
        seed=row_sampling.seed,
        thinking_token_budget=task.most_thinking_tokens,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # made for one request: a deep copy costs more than all else that vLLM does with one
        structured_outputs=structured_outputs,
    )
