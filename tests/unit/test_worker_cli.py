"""The command of a worker: how many slots a machine has."""

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.processes.hardware import slot_count


@pytest.mark.parametrize(
    ("wanted", "gpus", "slots"),
    [
        (None, 0, 1),
        (None, 1, 1),
        (None, 8, 8),
        (1, 8, 1),
        (4, 8, 4),
        (8, 8, 8),
        (1, 0, 1),
        (6, 0, 6),
    ],
)
def test_every_slot_has_as_many_gpus_as_the_others(
    wanted: int | None, gpus: int, slots: int
) -> None:
    assert slot_count(wanted, gpus) == slots


@pytest.mark.parametrize(
    ("wanted", "gpus", "possible"),
    [(2, 1, "name 1, or"), (3, 8, "name 1 or 2 or 4 or 8, or"), (16, 8, "8 GPUs")],
)
def test_slots_that_would_share_gpus_unevenly_are_refused(
    wanted: int, gpus: int, possible: str
) -> None:
    """All slots of such a machine were once sent to GPU 0."""
    with pytest.raises(BadInput, match=possible):
        slot_count(wanted, gpus)
