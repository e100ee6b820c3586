"""The rows of the benchmark: prompts of 10 to 80 words, answers of exponential length."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engine.words import words

FEWEST_WORDS, MOST_WORDS = 10, 80
MEAN_TOKENS = 56
MOST_TOKENS = 512
"""Longest answer: nine times the mean, which one row in nine thousand would exceed."""


def table(rows: int, seed: int) -> pa.Table:
    """`text` and `max_tokens` of so many rows; the same seed gives the same rows."""
    generator = np.random.default_rng(seed)
    known = np.asarray(words())
    texts = [
        " ".join(generator.choice(known, count))
        for count in generator.integers(FEWEST_WORDS, MOST_WORDS + 1, rows)
    ]
    lengths = np.clip(np.rint(generator.exponential(MEAN_TOKENS, rows)), 1, MOST_TOKENS).astype(int)
    return pa.table({"text": texts, "max_tokens": pa.array(lengths, pa.int64())})


def write(folder: Path, rows: int, seed: int) -> Path:
    """The Parquet file of these rows, written once."""
    path = folder / f"rows-{rows}-{seed}.parquet"
    if not path.exists():
        pq.write_table(table(rows, seed), path)
    return path


def read(path: Path) -> pa.Table:
    """The rows of a file."""
    return pq.read_table(path)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt and output tokens of each row, in dataset order: the same for every contender."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def __str__(self) -> str:
        return f"{len(self.prompt)} rows, {sum(self.prompt)} + {sum(self.output)} tokens"


def check(path: Path, found: dict[str, Tokens]) -> None:
    """AssertionError unless every contender counted the same tokens, as many as were asked for."""
    asked = tuple(pq.read_table(path, columns=["max_tokens"]).column(0).to_pylist())
    first = next(iter(found.values()))
    for name, tokens in found.items():
        assert tokens.output == asked, f"{name} made other numbers of tokens than asked"
        assert tokens.prompt == first.prompt, f"{name} had other prompts: {tokens}, {first}"


def chat(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """The texts in the model's chat template, as the fleet's `task.prompt` sends them."""
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        for text in texts
    ]
