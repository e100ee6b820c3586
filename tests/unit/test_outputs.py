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

EVERY_FIVE_SECONDS = [("unproved", float(now)) for now in range(0, 200, 5)]

PROOFS = [
    ("a proof that fails for two minutes", EVERY_FIVE_SECONDS[:25], None),
    ("a proof that fails for three minutes", EVERY_FIVE_SECONDS, 180.0),
    ("many at once", [("unproved", 7.0)] * 100, None),
    (
        "a proof in between begins anew",
        [*EVERY_FIVE_SECONDS[:12], ("proved", 60.0), ("unproved", 100.0), ("unproved", 159.0)],
        None,
    ),
    (
        "refused parts with a proof in between",
        [
            *[("refused", 60.0), ("proved", 66.0), ("refused", 130.0)],
            *[("proved", 136.0), ("refused", 200.0)],
        ],
        200.0,
    ),
    (
        "refused parts, then no proof",
        [
            *[("refused", 60.0), ("refused", 130.0), ("unproved", 136.0)],
            *[("unproved", 195.0), ("unproved", 196.0)],
        ],
        196.0,
    ),
]

OWNER = Owner("ledger", "job")


@pytest.mark.parametrize(
    ("refused", "said"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_refusals_count_by_rounds(refused: list[tuple[float, float]], said: list[bool]) -> None:
    assert len(ONE_AFTER_ANOTHER) == MOST_REFUSALS
    refusals = Refusals()
    assert [refusals.part_refused(claimed_at, now) for claimed_at, now in refused] == said


@pytest.mark.parametrize(
    ("happened", "said"), [case[1:] for case in PROOFS], ids=[c[0] for c in PROOFS]
)
def test_a_proof_that_fails_for_as_long_as_a_part_is_tried_counts_as_a_round(
    happened: list[tuple[str, float]], said: float | None
) -> None:
    refusals, waits_at = Refusals(), None
    for what, now in happened:
        if what == "proved":
            refusals.proved()
        elif refusals.proof_failed(now) if what == "unproved" else refusals.part_refused(now, now):
            waits_at = waits_at or now
    assert waits_at == said


def test_a_part_that_the_output_takes_ends_the_count() -> None:
    now = iter([60.0, 130.0, 200.0])
    outputs, full = Outputs(lambda: next(now)), StorageUnavailable("full")
    for claimed_at, _ in ONE_AFTER_ANOTHER[:2]:
        assert outputs.refused(1, full, claimed_at) is full
    outputs.took(1)
    assert outputs.refused(1, full, 135.0) is full


def test_a_directory_of_somebody_else_is_an_outage_until_the_job_waits_for_a_person(
    tmp_path: Path,
) -> None:
    now = iter(range(0, 1000, 30))
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

    def refuse(uri: str, _data: object, *, replace: bool = True) -> storage.Written:
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
