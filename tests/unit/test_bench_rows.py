"""The rows of the engine benchmark, and the check that every contender had the same."""

from pathlib import Path

import pytest

from benchmarks.engine import rows
from benchmarks.engine.rows import Tokens


def test_the_same_seed_gives_the_same_rows_within_their_bounds() -> None:
    table = rows.table(300, seed=3)
    assert table == rows.table(300, seed=3)
    assert table != rows.table(300, seed=4)
    words = [len(text.split()) for text in table.column("text").to_pylist()]
    lengths = table.column("max_tokens").to_pylist()
    assert min(words) >= rows.FEWEST_WORDS
    assert max(words) <= rows.MOST_WORDS
    assert min(lengths) >= 1
    assert max(lengths) <= rows.MOST_TOKENS
    assert sum(lengths) / len(lengths) == pytest.approx(rows.MEAN_TOKENS, rel=0.25)


def test_a_contender_with_other_tokens_is_caught(tmp_path: Path) -> None:
    path = rows.write(tmp_path, 4, seed=0)
    asked = tuple(rows.read(path).column("max_tokens").to_pylist())
    good = Tokens((5, 6, 7, 8), asked)
    rows.check(path, {"a": good, "b": good})
    with pytest.raises(AssertionError, match="b had other prompts"):
        rows.check(path, {"a": good, "b": Tokens((5, 6, 7, 9), asked)})
    with pytest.raises(AssertionError, match="b made other numbers"):
        rows.check(path, {"a": good, "b": Tokens(good.prompt, (*asked[:-1], 999))})
