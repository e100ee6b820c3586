"""Rates of children as `top` shows them."""

import pytest

from nightshift.producer.views.fleet_views import LiveRates, Report, live_rate


@pytest.mark.parametrize(
    ("reports", "now", "rate"),
    [
        ([], 100, None),
        ([(90, 50)], 100, None),
        ([(90, 50), (100, 150)], 101, 10.0),
        ([(80, 0), (90, 50), (100, 150)], 130, 7.5),
        ([(80, 0), (90, 50), (100, 150)], 131, 150 / 51),
    ],
)
def test_a_rate_goes_over_reports_and_falls_when_they_stay_away(
    reports: list[Report], now: float, rate: float | None
) -> None:
    assert live_rate(reports, now) == rate


def test_a_look_between_two_heartbeats_shows_the_rate_that_is_known() -> None:
    rates = LiveRates()
    assert rates.after({"w": (100, 4.0)}, 0.5) == {"w": 25.0}
    shown = [rates.after({"w": (100 + 20 * (now // 10), 10.0)}, now)["w"] for now in range(1, 45)]
    assert 0.0 not in shown
    assert shown[20:] == [2.0] * 24
    assert rates.after({}, 50) == {}
    assert rates.after({"w": (500, 10.0)}, 51) == {"w": 50.0}, "a child of that name is a new one"
