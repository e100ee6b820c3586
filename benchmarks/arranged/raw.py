"""One `LLM.generate` call over all rows, in dataset order: `python -m benchmarks.arranged.raw PLAN`."""

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from benchmarks.engine.rows import chat

WARM_ROWS = 64


def main(argument: str) -> None:
    """Warms up with other rows, then writes the seconds and the texts into the plan's file."""
    plan = json.loads(argument)
    llm = LLM(plan["model"], **plan["args"])
    tokenizer = llm.get_tokenizer()
    labels = plan["labels"]
    form = StructuredOutputsParams(choice=list(labels)) if labels else None
    params = SamplingParams(
        temperature=0,
        max_tokens=plan["max_tokens"],
        ignore_eos=not labels,
        structured_outputs=form,
    )
    warm = chat(tokenizer, [f"warm {number} up" for number in range(WARM_ROWS)])
    llm.generate(warm, params, use_tqdm=False)
    rows = pq.read_table(plan["rows"]).to_pylist()
    prompts = chat(tokenizer, [f"{row['shared']} {row['own']}" for row in rows])
    began = time.monotonic()
    answers = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.monotonic() - began
    texts = [answer.outputs[0].text for answer in answers]
    cached = sum(answer.num_cached_tokens or 0 for answer in answers)
    asked = sum(len(answer.prompt_token_ids or ()) for answer in answers)
    found = {"seconds": seconds, "texts": texts, "cached": cached / asked}
    file = Path(plan["out"])
    file.with_suffix(".new").write_text(json.dumps(found))
    file.with_suffix(".new").rename(file)


if __name__ == "__main__":
    main(sys.argv[1])
