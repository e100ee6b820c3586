"""(a) one `LLM.generate` call and (b) raw `AsyncLLM` with everything submitted at once."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from benchmarks.engine.contender import Plan, Result, Workload
from benchmarks.engine.rows import Tokens, chat
from nightshift.worker.engines.vllm.engine import effective

Kind = Literal["generate", "async"]
Generate = Callable[[Sequence[str], Sequence[SamplingParams]], list[Any]]


def load_llm(plan: Plan) -> tuple[LLM, Generate]:
    """A warm `LLM`, and one call of `LLM.generate`."""
    llm = LLM(plan.model, **plan.args)
    return llm, lambda prompts, params: llm.generate(list(prompts), list(params), use_tqdm=False)


def load_async(plan: Plan, loop: asyncio.AbstractEventLoop) -> tuple[AsyncLLM, Generate]:
    """An `AsyncLLM` on `loop`, and a call that submits everything and waits."""

    async def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(model=plan.model, **plan.args))

    llm = loop.run_until_complete(start())

    async def one(place: int, prompt: str, params: SamplingParams) -> Any:
        async for answer in llm.generate(prompt, params, f"{place}-{time.monotonic_ns()}"):
            if answer.finished:
                return answer
        raise RuntimeError("no answer")

    async def every(prompts: Sequence[str], params: Sequence[SamplingParams]) -> list[Any]:
        pairs = enumerate(zip(prompts, params, strict=True))
        return await asyncio.gather(*(one(place, *pair) for place, pair in pairs))

    return llm, lambda prompts, params: loop.run_until_complete(every(prompts, params))


def sampling(lengths: Sequence[int]) -> list[SamplingParams]:
    """Greedy, of exactly these lengths."""
    return [
        SamplingParams(
            temperature=0,
            max_tokens=length,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for length in lengths
    ]


def tokens(answers: Sequence[Any]) -> Tokens:
    """What vLLM counted."""
    return Tokens(
        tuple(len(answer.prompt_token_ids) for answer in answers),
        tuple(len(answer.outputs[0].token_ids) for answer in answers),
    )


def _measure(
    workload: Workload, tokenizer: Any, generate: Generate, engine: dict[str, Any]
) -> Result:
    table = pq.read_table(workload.path)
    prompts = chat(tokenizer, table.column("text").to_pylist())
    params = sampling(table.column("max_tokens").to_pylist())
    began = time.monotonic()
    answers = generate(prompts, params)
    return Result(time.monotonic() - began, tokens(answers), engine)


def main(kind: str, argument: str) -> None:
    """Warms up, does every workload, leaves the results in a file, and waits for its end."""
    plan = Plan.from_argument(argument)
    if kind == "generate":
        llm, generate = load_llm(plan)
        config = llm.llm_engine.vllm_config
    else:
        llm, generate = load_async(plan, asyncio.new_event_loop())
        config = llm.vllm_config
    tokenizer, engine = llm.get_tokenizer(), effective(config)
    _measure(plan.warm, tokenizer, generate, engine)
    results = [_measure(each, tokenizer, generate, engine) for each in plan.workloads]
    file = Path(plan.folder) / "results.json"
    file.with_suffix(".new").write_text(json.dumps([asdict(each) for each in results]))
    file.with_suffix(".new").rename(file)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
