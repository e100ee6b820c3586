"""Datasets that grow meet what else happens: reapers that freeze, jobs that close, files that are odd."""

import json
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import generations
from nightshift.common.states import JobState
from nightshift.producer.reaper import finish, generation_files, manifest
from nightshift.producer.verify.verify import verify
from nightshift.producer.watch import look
from tests.integration.test_growth import SHOUT, Grown
from tests.integration.test_retry import moody
from tests.support.fleet import output_ids


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Grown:
    return Grown(ledger, tmp_path)


def test_a_file_of_a_generation_that_a_frozen_reaper_replaced_is_written_again(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper freezes before it writes; meanwhile the rows run again, and another one writes."""
    site.submit_files(("a.parquet", 12), watch="30s")
    site.run(moody(1))
    stream = manifest.stream

    def freeze(*given: Any) -> None:
        *file, pages = given
        old = [list(page) for page in pages]
        monkeypatch.setattr(manifest, "stream", stream)
        assert site.retry() == 2
        site.run(SHOUT)
        generation_files.write_finished(site.ledger)
        stream(*file, old)

    monkeypatch.setattr(manifest, "stream", freeze)
    generation_files.write_finished(site.ledger)
    generation_files.write_finished(site.ledger)
    assert site.follow() == site.ids
    assert verify(site.ledger, site.job) == []


def test_appends_do_not_hold_up_the_files_of_generations_that_are_done(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files come more often than a large generation can be written."""
    site.submit_files(("a.parquet", 12), watch="30s")
    site.run(SHOUT)
    stream = manifest.stream

    def append_first(*given: Any) -> None:
        monkeypatch.setattr(manifest, "stream", stream)
        site.come(("b.parquet", 3))
        assert site.append().appended.rows == 3
        stream(*given)

    monkeypatch.setattr(manifest, "stream", append_first)
    generation_files.write_finished(site.ledger)
    assert site.follow() == site.ids[:12]


def test_an_output_that_is_broken_keeps_no_other_job_from_its_generations(
    site: Grown, ledger: Ledger, tmp_path: Path
) -> None:
    other = Grown(ledger, tmp_path / "other", boots=1)
    for each in (site, other):
        each.submit_files(("a.parquet", 12), watch="30s")
        each.run(SHOUT)
    (site.folder / "out").rename(site.folder / "moved")
    (site.folder / "out").write_text("a file in place of the folder")
    with pytest.raises(BadInput, match="out"):
        generation_files.write_finished(ledger)
    assert other.follow() == other.ids


def test_a_job_with_many_generations_takes_not_all_of_a_round(
    site: Grown, ledger: Ledger, tmp_path: Path
) -> None:
    other = Grown(ledger, tmp_path / "other", boots=3)
    for each in (site, other):
        each.submit_files(("a.parquet", 12), watch="30s")
    for number in range(2):
        site.come((f"b{number}.parquet", 3))
        site.append()
    for each in (site, other):
        each.run(SHOUT)
    with ledger.transaction() as connection:
        over = generations.over(connection, None, 2)
    assert over == [(site.job_id, 1), (other.job_id, 1)]


@pytest.mark.parametrize("by_command", [False, True], ids=["looks", "commands"])
def test_an_empty_file_is_taken_once_it_has_rows(site: Grown, by_command: bool) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    place = site.folder / "in" / "b.jsonl"
    place.touch()
    if by_command:
        assert site.append().appended.empty == (str(place),)
    else:
        site.look()
        site.look()
        assert (site.watch["files_refused"], site.watch["files_waiting"]) == (1, 0)
    assert site.ask("SELECT count(*) FROM input_files") == [(1,)]
    place.write_text("".join(json.dumps({"id": f"b-{n}", "text": "x"}) + "\n" for n in range(3)))
    if not by_command:
        site.look()
        site.look()
    site.append(last=True)
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == [*site.ids, "b-0", "b-1", "b-2"]


@pytest.mark.parametrize("closes", [False, True], ids=["before", "behind"])
def test_a_watch_that_begins_while_the_job_closes_keeps_the_job_open(
    site: Grown, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """The watch begins before or behind the close, and was asked for before."""
    from nightshift.producer.submit import existing

    site.submit_files(("a.parquet", 12))
    site.run(SHOUT)
    write, changes = manifest.write, existing.changes

    def watch_first(ledger: Ledger, job: Any) -> Any:
        written = write(ledger, job)
        assert site.submit_again(watch="30s").state is JobState.RUNNING
        return written

    def close_first(*given: Any) -> Any:
        assert site.finish() is JobState.COMPLETED
        return changes(*given)

    if closes:
        monkeypatch.setattr(existing, "changes", close_first)
        assert site.submit_again(watch="30s").state is JobState.RUNNING
    else:
        monkeypatch.setattr(manifest, "write", watch_first)
        finish.finish(site.ledger, site.job_id)
    assert site.job.state is JobState.RUNNING
    assert not (site.folder / "out" / "_manifest.json").exists()
    assert site.watch["waiting_for_files"]


def lines(place: Path, *rows: dict[str, Any]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_values_of_a_column_that_had_none_are_refused_and_not_lost(site: Grown) -> None:
    folder = site.folder / "in"
    lines(folder / "a.jsonl", {"id": "a-0", "text": "x", "empty": None, "size": 1.5})
    site.submit_again()
    lines(folder / "b.jsonl", {"id": "b-0", "text": "x", "empty": 5, "size": 2.5})
    with pytest.raises(
        BadInput, match=r"b\.jsonl has values in the column 'empty', which had none"
    ):
        site.append()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_column_without_a_value_fits_what_the_job_has(site: Grown, kind: str) -> None:
    folder = site.folder / "in"
    lines(folder / "a.jsonl", {"id": "a-0", "text": "x", "size": 1.5})
    site.submit_again()
    if kind == "csv":
        (folder / "b.csv").write_text("id,text,size\nb-0,x,\n")
    else:
        lines(folder / "b.jsonl", {"id": "b-0", "text": "x", "size": None})
    assert site.append().appended.rows == 1
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == ["a-0", "b-0"]


def test_files_in_folders_of_other_keys_than_the_first_are_refused(site: Grown) -> None:
    folder = site.folder / "in"
    lines(folder / "day=1" / "a.jsonl", {"id": "a-0", "text": "x"})
    site.submit_again()
    for name, keys in (("region=2", "region"), ("plain", "none")):
        lines(folder / name / "b.jsonl", {"id": "b-0", "text": "x"})
        with pytest.raises(BadInput, match=f"{name}.*{keys}.*a.jsonl in those of .*day"):
            site.append(folder / name / "b.jsonl")


def test_a_look_that_was_under_way_when_its_watch_ended_adds_nothing(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    site.run(SHOUT)
    site.come(("b.parquet", 3), counted=False)
    site.look()
    judge_look = look.judge_look

    def end_first(*given: Any) -> Any:
        monkeypatch.setattr(look, "judge_look", judge_look)
        assert site.append(site.folder / "in" / "a.parquet", last=True).stopped
        assert site.finish() is JobState.COMPLETED
        return judge_look(*given)

    monkeypatch.setattr(look, "judge_look", end_first)
    assert site.look()
    assert site.job.state is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids
