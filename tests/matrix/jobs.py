"""The jobs of the matrix: every pair of a kind, an input format, an output and a shape is in one of them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, count, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from nightshift.common.formats.known import FORMATS
from tests.matrix.kinds import KINDS, SENTIMENT
from tests.support.models import MINILM

Rows = list[dict[str, Any]]

BATCH_ROWS = 2
FIRST, LATER = range(5), range(5, 7)
"""Numbers of the rows of a job, and of those that are appended. The last of each begins with `bad`."""


def row(number: int) -> dict[str, Any]:
    """A row of the dataset. Five of six texts have an answer at once."""
    text = f"bad r-{number}" if number in (FIRST[-1], LATER[-1]) else f"say r-{number}"
    return {"id": f"r-{number}", "text": text, "keep": 1}


def left_out(number: int) -> dict[str, Any]:
    """A row that a job with a condition leaves out."""
    return {"id": f"x-{number}", "text": "say nothing", "keep": 0}


def request(each: dict[str, Any]) -> dict[str, Any]:
    """The line of an OpenAI batch file for a row."""
    messages = [{"role": "user", "content": f"text|{each['text']}"}]
    body = {"model": "m", "messages": messages}
    return {
        "custom_id": each["id"],
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def write_lines(path: Path, rows: Rows) -> None:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)


def write_csv(path: Path, rows: Rows) -> None:
    pyarrow.csv.write_csv(pa.Table.from_pylist(rows), path)


FILES: dict[str, Callable[[Path, Rows], None]] = {
    "parquet": write_parquet,
    "jsonl": write_lines,
    "csv": write_csv,
    "openai": lambda path, rows: write_lines(path, list(map(request, rows))),
}
"""How a file of each format is written."""

TABLES = ("delta", "iceberg")
"""Formats of tables, in and out; the ledger calls both `table`."""

INPUTS = (*(name for name in FORMATS if name != "table"), *TABLES)

OUTPUTS = ("parquet", "jsonl", *TABLES)

SHAPES = ("plain", "arranged", "where", "append")


def why_not(kind: str, input_format: str, output: str, shape: str) -> str | None:
    """Why no job has these values together; None if one can."""
    if (kind == "requests") != (input_format == "openai"):
        return "an OpenAI batch file goes with the task requests"
    if kind == "requests" and shape in ("where", "append"):
        return "an OpenAI batch file runs whole, in one piece"
    if kind == "function" and shape == "arranged":
        return "a function has no prompts to arrange"
    return None


@dataclass(frozen=True, slots=True)
class Combination:
    """The values of one job."""

    kind: str
    input_format: str
    output: str
    shape: str

    @property
    def name(self) -> str:
        """The name of the job and of its test."""
        return f"{self.kind}-{self.input_format}-{self.output}-{self.shape}"

    @property
    def first(self) -> Rows:
        """The rows that the job takes at first."""
        return [row(number) for number in FIRST]

    @property
    def later(self) -> Rows:
        """The rows that are appended."""
        return [row(number) for number in LATER] if self.shape == "append" else []

    @property
    def engine(self) -> str:
        return KINDS[self.kind].engine


AXES = {"kind": tuple(KINDS), "input_format": INPUTS, "output": OUTPUTS, "shape": SHAPES}


def possible() -> list[Combination]:
    """All jobs that there can be."""
    return [Combination(*values) for values in product(*AXES.values()) if why_not(*values) is None]


def pairs(job: Combination) -> set[tuple[str, str, str, str]]:
    """The pairs of values of two axes that a job has."""
    values = [(axis, getattr(job, axis)) for axis in AXES]
    return {one + other for one, other in combinations(values, 2)}


def covering() -> list[Combination]:
    """Few jobs that have every pair which some job has."""
    return _cover(possible(), pairs)


NUMBERS = count()


class Stage:
    """Where the jobs of the matrix lie: a folder, the address of the stand-in server, a catalog of tables."""

    def __init__(self, folder: Path, remote_url: str, open_catalog: Callable[[], Any]) -> None:
        self.folder = folder
        self._remote_url = remote_url
        self._open_catalog = open_catalog

    def spec(self, job: Combination, home: Path) -> dict[str, Any]:
        """Writes the input of a job into `home` and returns its spec; each call names another output."""
        number = next(NUMBERS)
        out = home / f"out-{number}"
        where = {"where": "keep = 1"} if job.shape == "where" else {}
        arrange = {"arrange": "prefix"} if job.shape == "arranged" else {}
        return {
            "name": f"{job.name}-{number}",
            "pool": "later",
            "input": {"uri": self._input(job, home), "id": "id", **where}
            if job.kind != "requests"
            else {"uri": self._input(job, home), "format": "openai"},
            "task": KINDS[job.kind].task,
            "engine": self._engine(job),
            "output": {"uri": str(out), **self._output(job, home, out, number)},
            "batch": {"rows": BATCH_ROWS, **arrange},
            "limits": {"max_failed_fraction": 1.0},
        }

    def _engine(self, job: Combination) -> dict[str, Any]:
        prices = {
            "price_per_million_prompt_tokens": 1.0,
            "price_per_million_output_tokens": 2.0,
        }
        return {
            "remote": {
                "backend": "openai",
                "model": "m",
                "base_url": self._remote_url,
                **prices,
            },
            "function": {"backend": "function", "callable": "matrix_rules:shout"},
            "classifier": {"backend": "transformers", "model": str(SENTIMENT), "device": "cpu"},
            "embedder": {"backend": "transformers", "model": MINILM, "device": "cpu"},
        }[job.engine]

    def _input(self, job: Combination, home: Path) -> str:
        rows = job.first
        if job.shape == "where":
            rows = [each for number, one in enumerate(rows) for each in (left_out(number), one)]
        if job.input_format in TABLES:
            return self._table_of(job, rows)
        home.mkdir(parents=True, exist_ok=True)
        suffix = {"openai": "jsonl"}.get(job.input_format, job.input_format)
        path = home / f"in.{suffix}"
        FILES[job.input_format](path, rows)
        return str(path)

    def more(self, job: Combination, home: Path) -> list[str]:
        """Adds the later rows of a job to its input; the files that an append names."""
        if job.input_format in TABLES:
            self._table_of(job, job.later)
            return []
        path = home / f"later.{job.input_format}"
        FILES[job.input_format](path, job.later)
        return [str(path)]

    def _table_of(self, job: Combination, rows: Rows) -> str:
        table = pa.Table.from_pylist(rows)
        if job.input_format == "delta":
            from deltalake import write_deltalake

            root = self.folder / "lake-in" / job.name
            root.parent.mkdir(exist_ok=True)
            write_deltalake(root, table, mode="append")
            return f"delta:{root}"
        name = "inputs." + "".join(filter(str.isalnum, job.name))
        catalog = self._open_catalog()
        catalog.create_table_if_not_exists(name, table.schema).append(table)
        return f"iceberg:lake.{name}"

    def _output(self, job: Combination, home: Path, out: Path, number: int) -> dict[str, Any]:
        if job.output == "delta":
            return {"table": {"format": "delta", "uri": str(home)}}
        if job.output == "iceberg":
            return {
                "table": {
                    "format": "iceberg",
                    "catalog": "lake",
                    "name": f"outputs.t{number}",
                }
            }
        return {"format": job.output}

    def table_rows(self, spec: dict[str, Any]) -> Rows | None:
        """The rows of the table that a job writes, by the table's own library; None without a table."""
        table = spec["output"].get("table")
        if table is None:
            return None
        if table["format"] == "delta":
            from deltalake import DeltaTable

            found = DeltaTable(table["uri"]).to_pyarrow_table()
        else:
            found = self._open_catalog().load_table(table["name"]).scan().to_arrow()
        return found.sort_by("row_index").to_pylist()


def in_fast(jobs: list[Combination]) -> list[Combination]:
    """Those for `make test`: few that together have every value of each axis, but the slow kinds."""
    return few_with_each([each for each in jobs if not KINDS[each.kind].slow], AXES)


def few_with_each(jobs: list[Combination], attributes: Iterable[str]) -> list[Combination]:
    """Return few jobs that together cover every value of each attribute: that with the most new values comes next."""
    names = list(attributes)

    def values(job: Combination) -> set[tuple[str, str]]:
        return {(name, getattr(job, name)) for name in names}

    return _cover(jobs, values)


def _cover(jobs: list[Combination], values: Callable[[Combination], set[Any]]) -> list[Combination]:
    """Return few jobs that together have all `values` that some job has: that with the most new ones comes next."""
    of = {job: values(job) for job in jobs}
    left = set[Any]().union(*of.values())
    chosen: list[Combination] = []
    while left:
        chosen.append(max(jobs, key=lambda job: len(of[job] & left)))
        left -= of[chosen[-1]]
    return chosen
