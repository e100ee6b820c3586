"""Submits that are killed, fail or meet another: the output directory has one owner all the same, and
a marker without a job stops nobody.
"""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import job_submit, jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from tests.support.fleet import Fleet, function_spec, write_rows
from tests.support.rig import BUILD

MARKER = "_owner.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in", [("a.jsonl", 6)])
    return tmp_path


def spec_of(folder: Path, work: str = "shout", output: str = "out") -> dict[str, Any]:
    engine = {"backend": "function", "callable": f"rules:{work}"}
    return function_spec(work, folder / "in", folder / output, engine=engine)


def put(ledger: Ledger, data: dict[str, Any], *, adopt: bool = False) -> Submitted:
    return submit(ledger, parse_spec(data, "test"), Settings(), Asked(adopt=adopt))


def identity_of(ledger: Ledger, job_id: int) -> str:
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    assert job is not None
    return job.identity


def assert_owned_by(folder: Path, ledger: Ledger, job_id: int) -> None:
    """The job is the ledger's only one, and the marker names it."""
    with ledger.transaction() as connection:
        assert [row["job"] for row in job_pace.listed(connection)] == [job_id]
        ledger_id = schema.ledger_id(connection)
    marker = json.loads((folder / "out" / MARKER).read_text())
    assert marker == {"ledger": ledger_id, "identity": identity_of(ledger, job_id)}


def cut(*_: object) -> None:
    raise Retryable("killed")


def processes(folder: Path, url: str) -> Fleet:
    """A test build whose commands speak to this database."""
    path = os.pathsep.join(filter(None, [str(BUILD), os.environ.get("PYTHONPATH", "")]))
    for name in ("armed", "fired"):
        (folder / "faults" / name).mkdir(parents=True, exist_ok=True)
    return Fleet(
        folder, NIGHTSHIFT_DATABASE_URL=url, PYTHONPATH=path, FAULTS=str(folder / "faults")
    )


# ---------------------------------------------------------------- a marker without a job


def test_a_job_that_is_edited_after_its_submit_was_killed_takes_the_directory(
    ledger: Ledger, other_ledger: Ledger, folder: Path
) -> None:
    """It was once refused for a job that the ledger does not know."""
    fleet = processes(folder, ledger.url)
    (folder / "faults" / "armed" / "submitting.0").write_text("kill")
    assert fleet.command("submit", str(fleet.spec(spec_of(folder)))).returncode == -9
    assert (folder / "out" / MARKER).exists()
    with pytest.raises(BadInput, match="another job in another ledger"):
        put(other_ledger, spec_of(folder, "slow"))
    edited = put(ledger, spec_of(folder, "slow"))
    assert edited.is_new
    assert_owned_by(folder, ledger, edited.job_id)
    with pytest.raises(BadInput, match=rf"the output of job {edited.job_id} "):
        put(ledger, spec_of(folder))


def test_what_a_submit_that_was_killed_had_begun_goes_with_the_next_one(
    ledger: Ledger, folder: Path
) -> None:
    """A begun marker once stayed for ever."""
    fleet = processes(folder, ledger.url)
    (folder / "faults" / "armed" / "writing.0").write_text("kill")
    assert fleet.command("submit", str(fleet.spec(spec_of(folder)))).returncode == -9
    (begun,) = (folder / "out").iterdir()
    assert begun.name.startswith(f".{MARKER}.")
    put(ledger, spec_of(folder, "slow"))
    assert [path.name for path in (folder / "out").iterdir()] == [MARKER]


def test_a_submit_that_was_cut_off_goes_on(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(job_submit, "insert", cut)
        with pytest.raises(Retryable):
            put(ledger, spec_of(folder))
    again = put(ledger, spec_of(folder))
    assert again.is_new
    assert_owned_by(folder, ledger, again.job_id)


def test_a_job_whose_marker_was_replaced_late_has_it_again_by_its_submit(
    ledger: Ledger, folder: Path
) -> None:
    """A submit that froze in the middle of a takeover writes its marker when it has lost its locks."""
    first = put(ledger, spec_of(folder))
    marker = folder / "out" / MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "identity": "never stored"}))
    assert put(ledger, spec_of(folder)).job_id == first.job_id
    assert_owned_by(folder, ledger, first.job_id)


# ---------------------------------------------------------------- submits that meet


def test_the_directory_of_a_job_that_is_being_stored_is_not_taken_over(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = loads.forgive, []

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(loads, "forgive", real)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(put, ledger, spec_of(folder, "slow"))
            refused.append(str(other.exception()))
        real(*arguments)

    monkeypatch.setattr(loads, "forgive", meanwhile)
    first = put(ledger, spec_of(folder))
    assert "is submitted at this moment" in refused[0]
    assert_owned_by(folder, ledger, first.job_id)


def test_a_marker_that_another_submit_replaced_since_the_look_is_not_taken_over(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the killed submit that the look had found once said nothing of the new marker."""
    with monkeypatch.context() as patch:
        patch.setattr(job_submit, "insert", cut)
        with pytest.raises(Retryable):
            put(ledger, spec_of(folder))
    real, others = job_submit.try_lock, []

    def meanwhile(*arguments: Any) -> bool:
        monkeypatch.setattr(job_submit, "try_lock", real)
        with ThreadPoolExecutor(1) as pool:
            others.append(pool.submit(put, ledger, spec_of(folder, "slow")).result())
        return real(*arguments)

    monkeypatch.setattr(job_submit, "try_lock", meanwhile)
    with pytest.raises(BadInput, match=r"the output of job \d+ \(slow\)"):
        put(ledger, spec_of(folder, "other"))
    assert_owned_by(folder, ledger, others[0].job_id)


def test_a_submit_whose_marker_was_taken_over_is_refused(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, others = OwnedDirectory.hold, []

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(OwnedDirectory, "hold", real)
        with ThreadPoolExecutor(1) as pool:
            others.append(pool.submit(put, ledger, spec_of(folder, "slow")).result())
        real(*arguments)

    monkeypatch.setattr(OwnedDirectory, "hold", overtaken)
    with pytest.raises(BadInput, match=r"the output of job \d+ \(slow\)"):
        put(ledger, spec_of(folder))
    assert_owned_by(folder, ledger, others[0].job_id)


def test_a_submit_that_fails_leaves_the_marker_to_an_equal_one(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once removed the marker of the job that the other had just stored."""
    insert_batches, forgive, take = job_submit.insert_batches, loads.forgive, OwnedDirectory.take
    taken, failed = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        others = []

        def fail(*_: object) -> int:
            monkeypatch.setattr(job_submit, "insert_batches", insert_batches)
            monkeypatch.setattr(OwnedDirectory, "take", noted)
            others.append(pool.submit(put, ledger, spec_of(folder)))
            assert taken.wait(60)
            raise BadInput("a line is no JSON")

        def noted(*arguments: Any, **options: Any) -> bool:
            made = take(*arguments, **options)
            taken.set()
            return made

        def slow(*arguments: Any) -> None:
            forgive(*arguments)
            failed.wait(0.5)

        monkeypatch.setattr(job_submit, "insert_batches", fail)
        monkeypatch.setattr(loads, "forgive", slow)
        # Or it gets the job of the other, if that is stored by then.
        with suppress(BadInput):
            put(ledger, spec_of(folder))
        failed.set()
        stored = others[0].result()
    assert stored.is_new
    assert_owned_by(folder, ledger, stored.job_id)


def test_of_two_submits_that_adopt_at_once_the_slower_removes_no_part_of_the_other(
    ledger: Ledger, other_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ledger, spec_of(folder))
    part = folder / "out" / "part-000000-a1.parquet"
    part.write_bytes(b"of the lost ledger")
    real, others = planner.plan, []

    def overtaken(*arguments: Any, **options: Any) -> planner.Plan:
        monkeypatch.setattr(planner, "plan", real)
        with ThreadPoolExecutor(1) as pool:
            others.append(pool.submit(put, other_ledger, spec_of(folder), adopt=True).result())
        assert not part.exists()
        part.write_bytes(b"of the job that adopted")
        return real(*arguments, **options)

    monkeypatch.setattr(planner, "plan", overtaken)
    again = put(other_ledger, spec_of(folder), adopt=True)
    assert (again.job_id, again.is_new) == (others[0].job_id, False)
    assert part.read_bytes() == b"of the job that adopted"
    assert_owned_by(folder, other_ledger, again.job_id)


ROUNDS = 5


def test_of_processes_that_submit_at_once_one_gets_the_directory(
    ledger: Ledger, other_ledger: Ledger, other_url: str, folder: Path
) -> None:
    """Two jobs of one ledger, and one of the two in another ledger."""
    fleets = [processes(folder, url) for url in (ledger.url, ledger.url, other_url)]
    for number in range(ROUNDS):
        output = f"out-{number}"
        specs = [fleets[0].spec(spec_of(folder, work, output)) for work in ("shout", "slow")]
        asked = zip(fleets, (*specs, specs[0]), strict=True)
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(lambda each: each[0].command("submit", str(each[1])), asked))
        said = [each.stderr for each in done]
        assert sorted(each.returncode for each in done) == [0, 2, 2], said
    with ledger.transaction() as one, other_ledger.transaction() as other:
        stored = [*job_pace.listed(one), *job_pace.listed(other)]
    assert len(stored) == ROUNDS
