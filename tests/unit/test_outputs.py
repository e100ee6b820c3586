"""When an output counts as writable, and when its job waits for a person."""

from pathlib import Path

import pytest

from nightshift.common import storage
from nightshift.common.errors import OutputRefused, StorageUnavailable
from nightshift.common.formats.owner_marker import Owner
from nightshift.worker.outputs import MOST_REFUSALS, Outputs, Refusals

TOGETHER = [(0.0, 60.0), (1.0, 61.0), (2.0, 61.5)]
ONE_AFTER_ANOTHER = [(0.0, 60.0), (65.0, 130.0), (135.0, 200.0)]

CASES = [
    ("batches that were under way together", TOGETHER, [False, False, False]),
    ("each claimed after the refusal before", ONE_AFTER_ANOTHER, [False, False, True]),
    ("two rounds and a straggler", [*ONE_AFTER_ANOTHER[:2], (66.0, 131.0)], [False, False, False]),
]

MINUTES = [60.0 * minute for minute in range(61)]

PROOFS = [
    ("less than an hour", [(now, False) for now in MINUTES[:60]]),
    ("an hour", [*((now, False) for now in MINUTES[:60]), (3600.0, True)]),
    ("a proof in between", [(0.0, False), (60.0, None), *((now, False) for now in MINUTES[2:])]),
    ("two outages", [(0.0, False), (3600.0, False), (3605.0, False)]),
]

OWNER = Owner("ledger", "job")


@pytest.mark.parametrize(
    ("refused", "said"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_refusals_count_by_rounds(refused: list[tuple[float, float]], said: list[bool]) -> None:
    assert len(ONE_AFTER_ANOTHER) == MOST_REFUSALS
    refusals = Refusals()
    assert [refusals.part_refused(claimed_at, now) for claimed_at, now in refused] == said


@pytest.mark.parametrize("said", [case[1] for case in PROOFS], ids=[c[0] for c in PROOFS])
def test_a_job_waits_for_a_person_when_no_proof_succeeds_for_an_hour(
    said: list[tuple[float, bool | None]],
) -> None:
    refusals = Refusals()
    for now, waits in said:
        if waits is None:
            refusals.proved()
        else:
            assert refusals.proof_failed(now, "full") is waits


def test_refused_parts_count_although_the_output_takes_the_files_of_proofs() -> None:
    refusals, said = Refusals(), []
    for claimed_at, now in ONE_AFTER_ANOTHER:
        refusals.proved()
        said.append(refusals.part_refused(claimed_at, now))
    assert said == [False, False, True]


def test_a_part_that_the_output_takes_ends_the_count() -> None:
    now = iter([60.0, 130.0, 130.0, 200.0])
    outputs, full = Outputs(lambda: next(now)), StorageUnavailable("full")
    for claimed_at, _ in ONE_AFTER_ANOTHER[:2]:
        assert outputs.refused(1, full, claimed_at) is full
    outputs.took(1)
    assert outputs.refused(1, full, 135.0) is full


def test_a_directory_of_somebody_else_is_an_outage_until_the_job_waits_for_a_person(
    tmp_path: Path,
) -> None:
    now = iter(range(0, 10_000, 600))
    outputs, output = Outputs(lambda: next(now)), tmp_path / "out"
    output.mkdir()
    (output / "_owner.json").write_bytes(Owner("ledger", "another").encoded())
    found = []
    for _ in range(7):
        with pytest.raises(StorageUnavailable, match="belongs to another job") as caught:
            outputs.prove(1, str(output), OWNER)
        found.append(caught.type)
    assert found == [StorageUnavailable] * 6 + [OutputRefused]


def test_an_output_is_proved_once_and_again_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, output = Outputs(), str(tmp_path / "out")
    outputs.prove(1, output, OWNER)
    assert storage.list_names(f"{output}/_attempts") == []
    written: list[str] = []

    def refuse(uri: str, _data: object, **how: object) -> storage.Written:
        written.append(uri)
        raise StorageUnavailable("full")

    monkeypatch.setattr(storage, "write_bytes", refuse)
    outputs.prove(1, output, OWNER)
    assert written == []
    outputs.refused(1, StorageUnavailable("full"), 0.0)
    for job_id in (1, 2):
        with pytest.raises(StorageUnavailable):
            outputs.prove(job_id, output, OWNER)
    outputs.took(1)
    outputs.prove(1, output, OWNER)
    assert len(written) == 2


def test_a_failed_proof_is_not_made_again_at_once_and_later_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tried = 0.0, list[float]()
    outputs, output = Outputs(lambda: now), str(tmp_path / "out")

    def refuse(uri: str, _data: object, **how: object) -> storage.Written:
        tried.append(now)
        raise StorageUnavailable("full")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_bytes", refuse)
        for second in range(200):
            now = float(second)
            with pytest.raises(StorageUnavailable, match="full"):
                outputs.prove(1, output, OWNER)
            assert outputs.avoided() == [1]
    assert tried == [0, 5, 15, 35, 75, 135, 195]
    now = 300.0
    assert outputs.avoided() == []
    outputs.prove(1, output, OWNER)
    assert outputs.avoided() == []


def test_an_output_that_was_proved_is_looked_at_again_after_a_minute(tmp_path: Path) -> None:
    """A child once went on for ever in a directory that another ledger had adopted."""
    now = iter([0.0, 59.0, 61.0, 100.0])
    outputs, output = Outputs(lambda: next(now)), tmp_path / "out"
    outputs.prove(1, str(output), OWNER)
    (output / "_owner.json").write_bytes(Owner("another", "job").encoded())
    outputs.prove(1, str(output), OWNER)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="belongs to another job or ledger"):
            outputs.prove(1, str(output), OWNER)
