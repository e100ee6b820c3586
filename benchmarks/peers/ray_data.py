"""Ray Data LLM over the rows of a plan: `RAY_PYTHON -m benchmarks.peers.ray_data PLAN`.

Runs in the interpreter that has Ray, which needs vLLM and nothing of Nightshift. One pipeline reads the
rows of every workload, since each execution of a pipeline starts an engine of its own. The rows of a
workload are read once those of the workload before have left the pipeline, so that its seconds are
those of a pipeline that is warm and empty.
"""

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig

CPUS = 8
"""CPUs that Ray believes to have. The stages of a pipeline ask for one each, so that on two cores the
pipeline would wait for ever.
"""

BATCH_ROWS = 64
BLOCK_ROWS = 256
"""Rows of a batch, as in Ray's own example, and of a block, of which Ray reads several at once."""

PAUSE_SECONDS = 0.01
MOST_SECONDS = 900.0
"""Pause between two looks at a gate, and the longest time before one."""


def read(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one block, once its gate is there."""
    gate, ends = Path(part["gate"]), time.monotonic() + MOST_SECONDS
    while not gate.exists():
        if time.monotonic() > ends:
            raise TimeoutError(f"{gate} is not there")
        time.sleep(PAUSE_SECONDS)
    rows = pq.read_table(part["path"]).slice(part["first"], part["rows"]).to_pylist()
    for at, row in enumerate(rows, part["first"]):
        yield {**row, "workload": part["workload"], "row": at}


def request(row: dict[str, Any]) -> dict[str, Any]:
    """What the processor asks for one row."""
    return {
        "workload": row["workload"],
        "row": row["row"],
        "messages": [{"role": "user", "content": row["text"]}],
        "sampling_params": {
            "temperature": 0,
            "max_tokens": row["max_tokens"],
            "ignore_eos": True,
            "detokenize": False,  # a stage of the pipeline does that
        },
    }


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """What the processor gives for one row."""
    return {
        "workload": row["workload"],
        "row": row["row"],
        "prompt_tokens": row["num_input_tokens"],
        "output_tokens": row["num_generated_tokens"],
        "text": row["generated_text"],
    }


def parts(paths: list[str], folder: Path) -> list[dict[str, Any]]:
    """The blocks of all workloads, none smaller than a batch: a smaller one would wait for the next gate."""
    found = []
    for workload, path in enumerate(paths):
        rows = pq.read_metadata(path).num_rows
        starts = list(range(0, rows, BLOCK_ROWS))
        if len(starts) > 1 and rows - starts[-1] < BATCH_ROWS:
            starts.pop()
        gate = str(folder / f"gate-{workload}")
        found += [
            {"workload": workload, "gate": gate, "path": path, "first": first, "rows": stop - first}
            for first, stop in zip(starts, [*starts[1:], rows], strict=True)
        ]
    return found


def main(argument: str) -> None:
    """Warms up, does every workload, leaves the results in a file, and waits for its end."""
    plan = json.loads(argument)
    folder = Path(plan["folder"])
    paths = [each["path"] for each in (plan["warm"], *plan["workloads"])]
    blocks = parts(paths, folder)
    config = vLLMEngineProcessorConfig(
        model_source=plan["model"],
        engine_kwargs={**plan["args"], "distributed_executor_backend": "mp"},
        placement_group_config={"bundles": [{"CPU": 1}]},  # else it asks for a GPU
        concurrency=1,
        batch_size=BATCH_ROWS,
        log_engine_metrics=False,
    )
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        object_store_memory=2**30,
        _node_ip_address="127.0.0.1",
    )
    processor = build_processor(config, preprocess=request, postprocess=answer)
    found = processor(ray.data.from_items(blocks, override_num_blocks=len(blocks)).flat_map(read))
    answers: list[list[dict[str, Any]]] = [[] for _ in paths]
    seconds: list[float] = []
    began = time.monotonic()
    (folder / "gate-0").touch()
    for block in found.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        now = time.monotonic()
        for row in block.to_pylist():
            answers[row["workload"]].append(row)
        at = len(seconds)
        if len(answers[at]) == sum(each["rows"] for each in blocks if each["workload"] == at):
            seconds.append(now - began)
            began = time.monotonic()
            (folder / f"gate-{at + 1}").touch()
    results = [_result(one, each) for one, each in zip(seconds[1:], answers[1:], strict=True)]
    ray.shutdown()
    file = folder / "results.json"
    file.with_suffix(".new").write_text(json.dumps(results))
    file.with_suffix(".new").rename(file)
    signal.pause()


def _result(seconds: float, answers: list[dict[str, Any]]) -> dict[str, Any]:
    answers.sort(key=lambda row: row["row"])
    return {
        "seconds": seconds,
        "tokens": {
            "prompt": [row["prompt_tokens"] for row in answers],
            "output": [row["output_tokens"] for row in answers],
        },
        "engine": {},
    }


if __name__ == "__main__":
    main(sys.argv[1])
