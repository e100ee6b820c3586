"""The mutants of the fault suite still fit the code that they change."""

import subprocess
import sys

import pytest

from tests.faults.mutants import HOME, MUTANTS, Mutant, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.protection)
def test_a_mutant_finds_its_protection_once_and_leaves_python_behind(mutant: Mutant) -> None:
    code = mutated((HOME / mutant.file).read_text(), mutant)
    if mutant.file.endswith(".py"):
        compile(code, mutant.file, "exec")


@pytest.mark.slow
def test_every_test_that_stands_for_a_protection_exists() -> None:
    """Else no mutant runs at all, and nobody sees that a protection is tested by nothing."""
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run([*command, *named], cwd=HOME, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-2000:]
