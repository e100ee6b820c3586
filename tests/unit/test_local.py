"""`nightshift run`: what its processes are told."""

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.settings import Settings
from nightshift.producer.local.fleet import for_reaper


@pytest.mark.parametrize(("port", "of_reaper"), [(None, None), (0, 0), (9464, 9465)])
def test_the_reaper_serves_its_metrics_beside_the_worker(
    port: int | None, of_reaper: int | None
) -> None:
    assert for_reaper(Settings(metrics_port=port)).metrics_port == of_reaper


def test_a_last_port_leaves_none_for_the_reaper() -> None:
    with pytest.raises(BadInput, match="the reaper takes the next"):
        for_reaper(Settings(metrics_port=65535))
