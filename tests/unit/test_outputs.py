"""When an output counts as writable, and when its job waits for a person."""

from pathlib import Path

import pytest

from nightshift.common import storage
from nightshift.common.errors import StorageUnavailable
from nightshift.common.formats.owner_marker import Owner
from nightshift.worker.outputs import MOST_REFUSALS, Outputs, Refusals

TOGETHER = [(0.0, 60.0), (1.0, 61.0), (2.0, 61.5)]
ONE_AFTER_ANOTHER = [(0.0, 60.0), (65.0, 130.0), (135.0, 200.0)]

CASES = [
    ("batches that were under way together", TOGETHER, [False, False, False]),
    ("each claimed after the refusal before", ONE_AFTER_ANOTHER, [False, False, True]),
    ("two rounds and a straggler", [*ONE_AFTER_ANOTHER[:2], (66.0, 131.0)], [False, False, False]),
]

OWNER = Owner("ledger", "job")


@pytest.mark.parametrize(
    ("refused", "said"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_refusals_count_by_rounds(refused: list[tuple[float, float]], said: list[bool]) -> None:
    assert len(ONE_AFTER_ANOTHER) == MOST_REFUSALS
    refusals = Refusals()
    assert [refusals.count(claimed_at, now) for claimed_at, now in refused] == said


def test_a_part_that_the_output_takes_ends_the_count() -> None:
    outputs = Outputs()
    for claimed_at, now in (*ONE_AFTER_ANOTHER[:2],):
        assert not outputs.refused(1, claimed_at, now)
    outputs.took(1)
    assert not outputs.refused(1, *ONE_AFTER_ANOTHER[2])


def test_an_output_is_proved_once_and_again_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, output = Outputs(), str(tmp_path / "out")
    outputs.prove(1, output, OWNER)
    assert storage.list_names(f"{output}/_attempts") == []
    written: list[str] = []

    def refuse(uri: str, _data: object, *, replace: bool = True) -> storage.Written:
        written.append(uri)
        raise StorageUnavailable("full")

    monkeypatch.setattr(storage, "write_bytes", refuse)
    outputs.prove(1, output, OWNER)
    assert written == []
    outputs.refused(1, 0.0, 60.0)
    for job_id in (1, 2):
        with pytest.raises(StorageUnavailable):
            outputs.prove(job_id, output, OWNER)
    outputs.took(1)
    outputs.prove(1, output, OWNER)
    assert len(written) == 2
