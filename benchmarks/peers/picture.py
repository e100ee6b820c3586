"""The picture of docs/performance.md: what each contender reached of raw vLLM. `python -m benchmarks.peers.picture`.

The same figures give the same bytes with one release of matplotlib: no date, a fixed salt for the names
inside the file, text as text in whatever font the reader has.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.table import DATASETS, NAMES, Rates, ratios
from benchmarks.report import OUT

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "peers.svg"

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nightshift",
    "font.family": "sans-serif",
    "font.size": 10,
}
PAPER, INK, FAINT = "#ffffff", "#1f2328", "#d0d7de"
OURS, OTHERS = "#0969da", "#8c959f"
"""Dark on white, with its own paper, so that the picture is the same on light and on dark pages."""


def draw(rates: Rates, path: Path = PICTURE) -> None:
    """Writes the picture: bars of the median over rounds, a line from the least to the greatest."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 2 * len(rates) + 0.6), facecolor=PAPER, layout="constrained")
        figure.suptitle("Rows a second, raw vLLM = 1", color=INK, fontsize=12)
        panels = figure.subplots(len(rates), 1, squeeze=False, sharex=True).flat
        for axes, (dataset, found) in zip(panels, rates.items(), strict=True):
            _panel(axes, DATASETS[dataset], {name: found[name] for name in NAMES if name in found})
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves blanks at the ends of lines, which no file here has.
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))


def _panel(axes: Axes, title: str, found: Mapping[str, Sequence[float]]) -> None:
    raw = found["raw"]
    axes.set_title(
        f"{title} (raw vLLM: {np.median(raw):.0f} rows/s)", loc="left", color=INK, fontsize=10
    )
    for at, (name, rates) in enumerate(found.items()):
        each = ratios(rates, raw)
        middle = float(np.median(each))
        axes.barh(at, middle, height=0.62, color=OURS if name == "nightshift" else OTHERS)
        axes.hlines(at, min(each), max(each), color=INK, linewidth=1.5)
        on_paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
        axes.text(max(each) + 0.02, at, f"{middle:.2f}", va="center", color=INK, bbox=on_paper)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), [NAMES[name] for name in found], color=INK)
    axes.invert_yaxis()
    axes.set_facecolor(PAPER)
    axes.tick_params(colors=INK, length=0)
    axes.xaxis.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.08)
    for side in axes.spines.values():
        side.set_visible(False)


if __name__ == "__main__":
    draw(json.loads((OUT / "peers.json").read_text(encoding="utf-8"))["rates"])
