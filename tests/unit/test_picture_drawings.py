"""Pictures of a job: what is drawn where, the forecast, and what a legend says."""

import math
import re

import pytest

from nightshift.common.ledger.queries.job_pace import Pace
from nightshift.common.ranges import Range
from nightshift.producer.serve.console.pictures import (
    forecast,
    lanes,
    rate,
    scales,
    tokens,
)
from nightshift.producer.serve.console.pictures.bars import LOAD, OTHERS, Bar, Lanes
from nightshift.producer.serve.console.pictures.forecast import Fan
from nightshift.producer.serve.console.pictures.rate import Rows
from nightshift.producer.serve.console.pictures.scales import Span
from nightshift.producer.serve.console.pictures.series import Point
from nightshift.producer.serve.console.pictures.tokens import Totals

HOSTILE = '"><script>alert(1)</script>'


ROWS = Rows(1000, 200, 7)


def life(*done: int, every: float = 10.0, failed: int = 0) -> list[Point]:
    return [Point(every * at, rows, failed if at else 0) for at, rows in enumerate(done)]


@pytest.mark.parametrize(
    ("value", "found"),
    [(0, 1), (0.03, 0.05), (1, 1), (1.2, 2), (4.9, 5), (5, 5), (51, 100), (2000.5, 2000)],
)
def test_a_scale_ends_at_a_round_number(value: float, found: float) -> None:
    assert scales.ceiling(value) == pytest.approx(found)


def test_moments_outside_of_a_span_lie_at_its_edge() -> None:
    span = Span(100, 200)
    assert [span.share(at) for at in (0, 100, 150, 200, 900)] == [0, 0, 0.5, 1, 1]
    assert span.percent(150) == "50.00%"
    assert Span(5, 5).share(5) == 0


@pytest.mark.parametrize(("seconds", "is_short"), [(20, True), (599, True), (601, False)])
def test_a_short_life_has_seconds_below_it_and_a_long_one_has_times(
    seconds: float, is_short: bool
) -> None:
    drawn = str(scales.clock(Span(1_000_000, 1_000_000 + seconds)))
    assert drawn.count("<time") == (0 if is_short else 5)
    assert ("<span>0 s</span>" in drawn) is is_short


@pytest.mark.parametrize(
    ("done", "found"),
    [([0, 1], 1), ([0, *[1] * 50], 12), (list(range(61)), 20), (list(range(2000)), 120)],
)
def test_a_life_is_cut_into_as_many_pieces_as_it_has_changes_for(
    done: list[int], found: int
) -> None:
    assert scales.pieces(life(*done)) == found


EVEN = life(*range(0, 310, 10))  # a row a second for 300 s


def paced(low: float, likely: float, high: float, left: float) -> Pace:
    """A pace, with the time that so many rows take."""
    slowest = left / low if low else math.inf
    return Pace(Range(low, likely, high), Range(left / high, left / likely, slowest))


@pytest.mark.parametrize(
    ("pace", "found"),
    [
        (None, None),
        (Pace(Range.exactly(1.0), None), None),
        (Pace(Range.exactly(1.0), Range.exactly(0.0)), None),
        (paced(1.0, 1.0, 1.0, 100), (1.0, 1.0, 400, 400, 400)),
        (paced(0.5, 1.0, 2.0, 100), (0.5, 2.0, 400, 350, 500)),
        # Nothing came in half of the time: nobody knows whether the job ends.
        (paced(0.0, 1.0, 2.0, 100), (0.0, 2.0, 400, 350, None)),
    ],
)
def test_the_forecast(
    pace: Pace | None, found: tuple[float, float, float, float, float | None] | None
) -> None:
    made = forecast.fan(pace, 300)
    if found is None:
        assert made is None
        return
    assert made is not None
    assert (made.slow, made.fast, made.end, made.fast_end, made.slow_end) == pytest.approx(found)


@pytest.mark.parametrize(
    ("edge", "slow_end", "found"),
    [
        (200, 180.0, [(100, 10), (110, 20), (140, 20), (180, 5), (110, 5)]),
        (160, 180.0, [(100, 10), (110, 20), (140, 20), (160, 12.5), (160, 5), (110, 5)]),
        (120, 180.0, [(100, 10), (105, 20), (120, 20), (120, 5), (105, 5)]),
        (160, None, [(100, 10), (110, 20), (140, 20), (160, 20), (160, 5), (110, 5)]),
    ],
)
def test_the_fan_is_cut_off_where_the_picture_ends(
    edge: float, slow_end: float | None, found: list[tuple[float, float]]
) -> None:
    fan = Fan(100, 10, 20, 5, 160, 140, slow_end)
    assert rate.outline(fan, edge) == found


def test_failures_lie_below_the_line_and_the_picture_says_its_numbers() -> None:
    points = life(0, 100, 200, failed=7)
    drawn = str(rate.draw(points, Span(0, 20), 20, None, None, ROWS))
    assert "10.0 at most, 10.0 last; 200 of 1,000 rows are done, 7 failed" in drawn
    (below,) = re.findall(r'class="failed" d="M0 130V([\d.]+)', drawn)
    assert float(below) >= 130 + rate.LEAST_FAILED
    assert "failures" in drawn
    assert "failures" not in str(rate.draw(life(0, 100), Span(0, 10), 10, None, None, ROWS))


def test_nothing_is_drawn_before_the_first_row() -> None:
    assert rate.draw(life(0, 0), Span(0, 10), 10, None, None, ROWS) == ""
    assert tokens.draw(life(0, 5), Span(0, 10), Totals(0, 0)) == ""
    assert lanes.draw(Lanes(), {}, Span(0, 1)) == ""


@pytest.mark.parametrize(
    ("finish_by", "lines", "said"), [(None, 0, False), (25.0, 1, True), (99.0, 0, True)]
)
def test_the_deadline_is_a_line_where_the_picture_reaches_it(
    finish_by: float | None, lines: int, said: bool
) -> None:
    drawn = str(rate.draw(life(0, 9, 20), Span(0, 30), 20, None, finish_by, ROWS))
    assert drawn.count('<line class="late"') == lines
    assert ("deadline <time" in drawn) is said


def test_tokens_out_lie_on_tokens_in_and_the_legend_has_the_totals_of_the_job() -> None:
    points = [Point(0), Point(10, 9, 0, 1000, 500)]
    drawn = str(tokens.draw(points, Span(0, 10), Totals(1001, 502)))
    for words in ("1,001 in<", "502 out<", "Tokens a second: 1,001 in; 502 out"):
        assert words in drawn
    assert " out<" not in str(
        tokens.draw([Point(0), Point(10, 9, 0, 5)], Span(0, 10), Totals(5, 0))
    )
    tops = [float(top) for top in re.findall(r"V([\d.]+)H10000", drawn)]
    most = 200  # the scale above 150 tokens a second
    assert tops == pytest.approx([110 - 110 * rate / most for rate in (100, 150)], abs=0.1)


def test_a_bar_leads_to_its_batch_and_a_load_leads_nowhere() -> None:
    kept = Lanes(
        {("a", 0): [Bar(LOAD, 0, 2), Bar("d", 2, 6, 1, 10, 1, 7), Bar("f", 6, 7, 3, 30, 0, 8)]}
    )
    drawn = str(lanes.draw(kept, {("b", 1): [Bar("w", 5, 10, 1, 9, 0, 9)]}, Span(0, 10)))
    links = re.findall(r'<a href="([^"]+)" tabindex="-1"><title>([^<]+)</title>', drawn)
    assert links == [
        ("?batch=7", "batch 7, 10 rows, 1 failed"),
        ("?batch=8", "3 batches failed, 30 rows"),
        ("?batch=9", "batch 9 at work, 9 rows"),
    ]
    assert re.findall(r"(\d+) %", drawn) == ["50", "50"]
    assert "engine loads" in drawn
    assert "released" not in drawn


def test_a_thinned_lane_says_no_share_and_counts_no_batches() -> None:
    kept = Lanes(
        {("a", 0): [Bar("d", 0, 5, 3, 30, 0, 4), Bar("d", 5, 9, 1, 10, 0, 8)]}, is_sampled=True
    )
    drawn = str(lanes.draw(kept, {}, Span(0, 10)))
    assert re.findall("<title>([^<]+)", drawn) == ["batch 4 and others", "batch 8, 10 rows"]
    assert '<span class="busy"></span>' in drawn


def test_many_leases_that_run_in_one_lane_are_one_bar() -> None:
    running = [Bar("w", 0, 10, 1, 5, 0, at) for at in range(40)]
    drawn = str(lanes.draw(Lanes(), {("a", 0): running}, Span(0, 10)))
    assert drawn.count("<a ") == 1
    assert "40 batches at work, 200 rows" in drawn


def test_lanes_stand_in_the_order_of_hosts_and_slots() -> None:
    bar = [Bar("d", 0, 1, 1, 1, 0, 0)]
    kept = Lanes({OTHERS: bar, ("b", None): bar, ("a", 10): bar, ("a", 2): bar})
    drawn = str(lanes.draw(kept, {}, Span(0, 1)))
    assert re.findall(r"<span>(/\d+)?</span>", drawn) == ["/2", "/10", "", ""]
    assert drawn.index("other hosts") > drawn.index(">b<")


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        (["gpu-1.rack.example", "gpu-2.rack.example"], ["gpu-1", "gpu-2"]),
        (["gpu.a.example", "gpu.b.example"], ["gpu.a.example", "gpu.b.example"]),
        (["10.0.0.1"], ["10.0.0.1"]),
    ],
)
def test_domains_are_left_out_where_hosts_differ_without_them(
    hosts: list[str], found: list[str]
) -> None:
    assert list(lanes.shown_hosts(hosts).values()) == found


def test_names_of_hosts_are_text() -> None:
    kept = Lanes({(HOSTILE, 0): [Bar("d", 0, 1, 1, 1, 0, 0)]})
    assert "<script" not in str(lanes.draw(kept, {}, Span(0, 1)))


def test_an_end_that_no_calendar_has_is_none() -> None:
    made = forecast.fan(paced(1.0, 1e6, 1e6, 10**13), 300)
    assert rate.draw(EVEN, Span(0, 600), 300, made, None, ROWS)
    assert made is not None
    assert made.slow_end is None
    assert forecast.fan(paced(1.0, 1.0, 1.0, 10**13), 300) is None
