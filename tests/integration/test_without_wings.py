"""The core without one of its wings, in a copy of the tree: `make without-wings` takes out all of them in turn."""

from pathlib import Path

import pytest

from tests import without_wing

CORE = (
    "tests/unit/test_cli.py",
    "tests/unit/test_duties.py",
    "tests/unit/test_wings.py",
    "tests/unit/test_advice.py",
    "tests/integration/test_submit.py",
    "tests/integration/test_ledger.py",
    "tests/integration/test_reaper_rounds.py",
)
"""Tests that import the commands, the duties and the ledger of the core, and run its main path."""


@pytest.mark.slow
def test_the_core_passes_its_tests_without_a_wing(capfd: pytest.CaptureFixture[str]) -> None:
    assert without_wing.unexpected("judge", CORE) == [], capfd.readouterr().out[-8000:]


@pytest.mark.parametrize("wing", without_wing.ABOUT)
def test_each_wing_can_be_taken_out_of_the_table(wing: str, tmp_path: Path) -> None:
    without_wing.copied(tmp_path)
    without_wing.without(wing, tmp_path)
