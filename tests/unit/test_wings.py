"""What a wing registers stands where its table says."""

from importlib import import_module
from pkgutil import resolve_name

import pytest

from nightshift.producer import wings

POINTS = {
    "commands",
    "duties",
    "input_table",
    "pages",
    "pilot",
    "read_archived",
    "run_again",
}


@pytest.mark.parametrize("name", wings.INSTALLED)
def test_every_entry_of_a_wing_stands_where_it_says(name: str) -> None:
    wing = vars(import_module(f"nightshift.producer.{name}.wing"))
    points = POINTS & wing.keys()
    assert points, "a wing that takes part nowhere is none"
    for point in points - {"commands"}:
        assert callable(resolve_name(wing[point])), point
    assert all(command.called for command in wing.get("commands", ()))
