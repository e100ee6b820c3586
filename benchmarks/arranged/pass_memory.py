"""The memory and the time of the pass that arranges rows: `python -m benchmarks.arranged.pass_memory`.

Rows in 64 Parquet files, whose documents are shuffled. DuckDB holds at most what it is given and spills
the rest, and so do the boxes in which rows get into their order, so that the memory of ten million rows is
that of a hundred million but for 4 bytes a row, footers and the plan; the time grows with the rows.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.report import Line, keep
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.arrange.arrange import arranged_plan
from nightshift.producer.submit.planning import planner

FILES = 64
GIGABYTES = 2.0


def main(
    rows: Annotated[int, typer.Option(min=FILES)] = 10_000_000,
    row_bytes: Annotated[int, typer.Option(min=200, help="Bytes of a row, about.")] = 200,
) -> None:
    """Makes the rows, arranges them, reads the batches, and says what that took."""
    with tempfile.TemporaryDirectory(prefix="bench-pass-") as name:
        folder = Path(name)
        _make(folder / "in", rows, row_bytes)
        data = {
            "name": "pass",
            "input": {"uri": str(folder / "in")},
            "task": {"kind": "generate", "prompt": "{{ document }} {{ question }}"},
            "engine": {"backend": "vllm", "model": "any/model"},
            "output": {"uri": str(folder / "out")},
            "batch": {"arrange": "prefix"},
        }
        spec = parse_spec(data, "the benchmark")
        plan = planner.plan(spec.input, spec.batch.rows, columns=spec.read_columns)
        began = time.monotonic()
        arranged = arranged_plan(spec, plan, output_uri=spec.output.uri, cache_tokens=None)
        passed = time.monotonic() - began
        held = sum(len(batch.rows) for batch in arranged.batches())
        planned = time.monotonic() - began - passed
        assert held == rows
        (copy,) = (folder / "out" / "_input").iterdir()
        copied = copy.stat().st_size / 1e9
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    line = Line(
        section=f"pass-{row_bytes}",
        contender=f"{rows:,} rows of {row_bytes:,} bytes, sorted in {passed:.0f} s, batches made in "
        f"{planned:.0f} s, a copy of {copied:.1f} GB",
        rate=f"{rows / passed:,.0f} rows/s",
        ratio=f"{gigabytes:.2f} GB at most",
        rounds=1,
        spread="",
        wanted=f"under {GIGABYTES:g} GB",
        verdict="reached" if gigabytes < GIGABYTES else "missed",
    )
    keep(line.section, [line])


def _make(folder: Path, rows: int, row_bytes: int) -> None:
    folder.mkdir()
    generator = np.random.default_rng(0)
    each = rows // FILES
    for number in range(FILES):
        count = each if number else rows - each * (FILES - 1)
        documents = generator.integers(0, rows // 8, count)
        letters = generator.choice(list("abcdefghijkl"), row_bytes - 56)
        rest = "".join(letters)
        texts = [f"{document:012d}{rest}" for document in documents]
        questions = [f"what of {at:032d}?" for at in generator.integers(0, 2**60, count)]
        table = pa.table({"document": texts, "question": questions})
        pq.write_table(
            table, folder / f"{number:03}.parquet", compression="zstd", row_group_size=2**16
        )


if __name__ == "__main__":
    typer.run(main)
