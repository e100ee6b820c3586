"""The mutants of the fault suite still fit the code that they change."""

import pytest

from tests.faults.mutants import HOME, MUTANTS, Mutant, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.protection)
def test_a_mutant_finds_its_protection_once_and_leaves_python_behind(mutant: Mutant) -> None:
    code = mutated((HOME / mutant.file).read_text(), mutant)
    compile(code, mutant.file, "exec")
