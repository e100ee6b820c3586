"""(c) the naive loop: one Celery task a batch, one at a time, around a warm `LLM`."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engine import raw
from benchmarks.engine.contender import Plan
from benchmarks.engine.naive_queue import DONE, ENGINE, TASK, WARM, make_app
from benchmarks.engine.rows import chat
from nightshift.worker.engines.vllm.engine import effective


def serve(plan: Plan, broker_url: str) -> None:
    """A worker with a warm engine; each task reads its rows, generates, and writes its part."""
    folder = Path(plan.folder)
    llm, generate = raw.load_llm(plan)
    tokenizer = llm.get_tokenizer()
    (folder / ENGINE).write_text(json.dumps(effective(llm.llm_engine.vllm_config)))
    app = make_app(broker_url)

    def batch(path: str, first: int, rows: int) -> dict[str, Any]:
        began = time.monotonic()
        table = pq.read_table(path).slice(first, rows)
        prompts = chat(tokenizer, table.column("text").to_pylist())
        answers = generate(prompts, raw.sampling(table.column("max_tokens").to_pylist()))
        texts = [answer.outputs[0].text for answer in answers]
        name = f"part-{Path(path).stem}-{first:08}.parquet"
        pq.write_table(pa.table({"output": texts}), folder / name, compression="zstd")
        counted = raw.tokens(answers)
        return {
            "first": first,
            "began": began,
            "ended": time.monotonic(),
            "prompt": counted.prompt,
            "output": counted.output,
        }

    @app.task(name=TASK)
    def task(path: str, first: int, rows: int) -> None:
        done = batch(path, first, rows)
        with (folder / DONE).open("a") as file:
            file.write(json.dumps(done) + "\n")

    for first in range(0, plan.warm.rows, plan.warm.batch):
        batch(plan.warm.path, first, plan.warm.batch)
    (folder / WARM).touch()
    app.worker_main(["--quiet", "worker", "--pool=solo", "--concurrency=1", "--loglevel=warning"])


if __name__ == "__main__":
    serve(Plan.from_argument(sys.argv[1]), sys.argv[2])
