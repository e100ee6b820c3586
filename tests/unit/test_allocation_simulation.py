"""The plan in simulated pools: bounds that hold whatever jobs come and go, and a table of figures.

The bounds:

- work of the highest priority has a slot within 2 s while slots outnumber engines; else within the
  turns of the engines before it, of four residences and a load each;
- no slot idles beside work that it could do for more than 2 s;
- a slot at work leaves an engine for equal or less urgent work only after its residence, or to give
  an engine its first slot.

How much of the time goes to loading has no bound: many jobs here are shorter than a load.
"""

import pytest

from tests.support.pool_simulation import Figures, PoolSimulation, table

MOST_IDLE_SECONDS = 2


def hold(found: list[Figures]) -> None:
    for each in found:
        assert each.worst_wait <= each.wait_bound, each
        assert each.worst_idle <= MOST_IDLE_SECONDS, each
        assert each.cut_residences == 0, each
        assert each.jobs > 0, each


def simulated(shapes: list[tuple[int, int]], seconds: int, title: str) -> list[Figures]:
    found = [
        PoolSimulation(seed, slots, keys).run(seconds) for seed, (slots, keys) in enumerate(shapes)
    ]
    print(f"\n{title}, {seconds / 3600:g} h each\n{table(found, seconds)}")
    return found


@pytest.mark.slow
def test_small_pools_keep_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        found = simulated([(1, 2), (2, 5), (8, 4), (8, 12)], 3600, "simulated pools")
    hold(found)


@pytest.mark.slow
@pytest.mark.timeout(600)  # two minutes of one core, on a machine that others use
def test_pools_of_any_size_keep_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = [(1, 2), (1, 6), (2, 3), (2, 20), (4, 4), (8, 2), (8, 8), (8, 20), (40, 5), (40, 20)]
    with capsys.disabled():
        found = simulated(2 * shapes + [(200, 5), (200, 20)], 2 * 3600, "simulated pools")
    hold(found)
