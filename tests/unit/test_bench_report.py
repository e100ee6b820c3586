"""The page of the benchmarks is written from what is kept of them, and so is its picture."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import report
from benchmarks.engine.contender import flags
from benchmarks.peers.table import lines, ratios

RATES = {
    "nothing": {
        "raw": [50.0, 40.0, 60.0],
        "nightshift": [49.0, 40.0, 57.0],
        "run-batch": [40.0, 30.0, 51.0],
    },
    "documents": {
        "raw": [20.0, 10.0, 20.0],
        "nightshift": [41.0, 21.0, 43.0],
        "ray": [16.0, 9.0, 15.0],
    },
}


def test_the_table_of_the_page_is_written_from_the_kept_lines() -> None:
    page = report.PAGE.read_text()
    assert report.written(page) == page, "run `python -m benchmarks.report`"
    assert page.count("\n| peers, ") >= 6


def test_the_picture_of_the_page_has_the_kept_ratios() -> None:
    from benchmarks.peers import picture

    kept = json.loads((report.OUT / "peers.json").read_text())["rates"]
    drawn = picture.PICTURE.read_text()
    for found in kept.values():
        for rates in found.values():
            assert f">{np.median(ratios(rates, found['raw'])):.2f}<" in drawn


def test_a_picture_is_the_same_bytes_for_the_same_figures(tmp_path: Path) -> None:
    from benchmarks.peers import picture

    for name in ("one.svg", "two.svg"):
        picture.draw(RATES, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    drawn = (tmp_path / "one.svg").read_text()
    for text in ("Nightshift", "vllm run-batch", "Ray Data LLM", "rows that share nothing", "2.10"):
        assert text in drawn
    assert "date" not in drawn


def test_a_line_has_the_ratio_to_raw_vllm_of_the_same_round() -> None:
    found = {(line.section, line.contender): line for line in lines(RATES)}
    assert len(found) == 6
    ours = found["peers, documents with 8 questions each, shuffled", "Nightshift"]
    assert ours.ratio == "2.1 (2.05 to 2.15) of raw vLLM"
    assert ours.rounds == 3
    raw = found["peers, rows that share nothing", "raw vLLM, one LLM.generate call"]
    assert (raw.rate, raw.ratio) == ("50.0 rows/s", "")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"max_num_seqs": 64}, ["--max-num-seqs", "64"]),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
    ],
)
def test_engine_arguments_become_flags_of_vllm(
    args: dict[str, object], expected: list[str]
) -> None:
    assert flags(args) == expected
