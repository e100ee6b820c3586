"""Looking at jobs from the outside: status, jobs, errors, sample, collect, verify."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from sqlalchemy import text
from typer.testing import CliRunner, Result

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import output_schema, part_names, part_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, dispatch, failures, leasing, splits
from nightshift.common.ledger.batches.records import Claimant, Lease, Part
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import job_submit, jobs
from nightshift.common.ledger.jobs.job_submit import NewJob
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.row_errors import Failure, RowError
from nightshift.common.spec import parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.producer.cli.app import app
from nightshift.producer.reaper import finish
from nightshift.producer.results.collect import collect
from nightshift.producer.results.sample import sample
from nightshift.producer.verify.verify import verify
from nightshift.producer.views import progress
from tests.support.fleet import commit_one

ROWS, BATCH = 40, 8
FAILED = (3, 17, 30)
WORKER = "w1"


@dataclass
class Work:
    """A job over a small Parquet file, worked on by hand."""

    ledger: Ledger
    folder: Path
    format: str = "parquet"
    name: str = "small"
    job_id: int = 0
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    who: Claimant = field(init=False)

    def __post_init__(self) -> None:
        source = self.folder / "rows.parquet"
        table = pa.table(
            {
                "key": [f"k{row}" for row in range(ROWS)],
                "words": [f"words of row {row}" for row in range(ROWS)],
            }
        )
        pq.write_table(table, source)
        self.spec = parse_spec(
            {
                "name": self.name,
                "input": {"uri": str(source), "id": "key"},
                "task": {"kind": "generate", "prompt": "{{ words }}"},
                "engine": {"backend": "vllm", "model": "M"},
                "output": {"uri": str(self.folder / self.name), "format": self.format},
                "batch": {"rows": BATCH},
            },
            "test",
        )
        info = storage.stat(str(source))
        file = SourceFile(info.uri, "parquet", info.size, info.fingerprint, ROWS, 0)
        schema = output_schema.output_schema(self.spec, table.schema)
        assert schema is not None
        self.schema = schema
        self.who = Claimant(WORKER, "default", self.spec.engine_key, "vllm", "0")
        with self.ledger.transaction() as connection:
            self.job_id = job_submit.insert(
                connection,
                NewJob(
                    self.spec,
                    self.name,
                    self.name,
                    self.spec.output.uri,
                    output_schema.serialize(table.schema),
                    output_schema.serialize(schema),
                ),
                [file],
            )
            job_submit.insert_batches(
                connection,
                self.job_id,
                [file],
                [
                    Descriptor(file, RowRanges.of((first, first + BATCH)))
                    for first in range(0, ROWS, BATCH)
                ],
            )
            if workers.child_state(connection, WORKER) is None:
                child = workers.Child(WORKER, "s", "default", 0, "host", 1, self.spec.engine_key)
                workers.register(connection, child)
                workers.ready(connection, child, workers.LoadedEngine("vllm", "0", 64))

    @property
    def job(self) -> Job:
        with self.ledger.transaction() as connection:
            job = jobs.get(connection, self.job_id)
        assert job is not None
        return job

    @property
    def output(self) -> Path:
        return Path(self.spec.output.uri)

    def claim(self, most: int = 100) -> list[Lease]:
        with self.ledger.transaction() as connection:
            dispatch.admit(connection, self.job_id, 100, dispatch.next_rank(connection))
            return claims.claim(
                connection,
                self.who,
                room_rows=10_000,
                max_batches=most,
                idle=True,
                woken="message",
                lease_seconds=60,
            )

    def part(self, lease: Lease, rows: RowRanges) -> Part:
        index = list(rows)
        failures = [
            Failure.of(RowErrorKind.TRUNCATED, f"row {row} was cut off") if row in FAILED else None
            for row in index
        ]
        table = pa.table(
            {
                "row_index": index,
                "key": [f"k{row}" for row in index],
                "output": [None if row in FAILED else f"answer {row}" for row in index],
                "finish_reason": ["stop"] * len(index),
                "prompt_tokens": pa.array([5] * len(index), pa.int32()),
                "output_tokens": pa.array([2] * len(index), pa.int32()),
                "answered_by": pa.nulls(len(index), pa.int64()),
                "error": part_rows.error_column(failures),
            }
        ).cast(self.schema)
        name = part_names.part_name(lease.seq, lease.batch_id, lease.attempt, self.format)
        facts = part_rows.write_part(
            part_names.staged(self.spec.output.uri, name), table, self.spec.output.format, {}
        )
        return Part(
            name,
            facts.bytes,
            facts.checksum,
            5 * len(index),
            2 * len(index),
            [
                RowError(row, f"k{row}", failure.kind, failure.message)
                for row, failure in zip(index, failures, strict=True)
                if failure is not None
            ],
        )

    def commit(self, lease: Lease) -> None:
        part = self.part(lease, lease.todo)
        with self.ledger.transaction() as connection:
            commit_one(connection, lease, part)
        self.settle(part)

    def split(self, lease: Lease, finished: RowRanges) -> None:
        part = self.part(lease, finished)
        with self.ledger.transaction() as connection:
            splits.split(connection, lease, finished, part)
        self.settle(part)

    def settle(self, part: Part) -> None:
        storage.move(
            part_names.staged(self.spec.output.uri, part.name),
            part_names.final(self.spec.output.uri, part.name),
        )

    def to_the_end(self) -> Job:
        """Drains the second batch in the middle with its rows in no neat order, then the rest."""
        leases = self.claim()
        self.split(leases[1], RowRanges.from_indices([9, 11, 12]))
        for lease in [leases[0], *leases[2:], *self.claim()]:
            self.commit(lease)
        finish.finish(self.ledger, self.job_id)
        return self.job

    def sql(self, statement: str, **values: Any) -> None:
        with self.ledger.transaction() as connection:
            connection.execute(text(statement), {"job": self.job_id, **values})

    def some_part(self) -> Path:
        return sorted(self.output.glob("part-*"))[2]


@pytest.fixture
def work(ledger: Ledger, tmp_path: Path) -> Work:
    return Work(ledger, tmp_path)


@pytest.fixture
def done(work: Work) -> Work:
    work.to_the_end()
    return work


@pytest.fixture
def nightshift(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Runs the command on this test's ledger."""
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def messages(work: Work) -> list[str]:
    return [f"{finding.check}: {finding.message}" for finding in verify(work.ledger, work.job)]


# ---------------------------------------------------------------- look


def test_status_json_carries_numbers_and_nulls(
    work: Work, nightshift: Callable[..., Result]
) -> None:
    result = nightshift("status", "small", "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert {
        "job": work.job_id,
        "name": "small",
        "status": "running",
        "rows_total": ROWS,
        "rows_done": 0,
        "rows_failed": 0,
        "batches_total": 5,
        "batches_done": 0,
        "batches_leased": 0,
        "batches_dead": 0,
        "prompt_tokens": 0,
        "output_tokens": 0,
        "rows_per_second": None,
        "eta_seconds": None,
        "output_uri": work.spec.output.uri,
    }.items() <= said.items()


def test_status_json_of_a_finished_job_has_its_overall_rate(
    done: Work, nightshift: Callable[..., Result]
) -> None:
    said = json.loads(nightshift("status", str(done.job_id), "--json").stdout)
    assert (said["status"], said["rows_done"], said["rows_failed"]) == ("completed", 37, 3)
    assert said["rows_per_second"] > 0
    assert said["eta_seconds"] is None
    assert (said["prompt_tokens"], said["output_tokens"]) == (5 * ROWS, 2 * ROWS)


def test_status_json_of_all_jobs_is_a_list(done: Work, nightshift: Callable[..., Result]) -> None:
    assert [one["job"] for one in json.loads(nightshift("status", "--json").stdout)] == [
        done.job_id
    ]


@pytest.mark.parametrize("command", ["status", "jobs", "watch"])
def test_every_look_names_the_job(
    work: Work, nightshift: Callable[..., Result], command: str
) -> None:
    result = nightshift(command)
    assert result.exit_code == 0
    assert "small" in result.stdout
    assert f"0/{ROWS}" in result.stdout


def test_status_says_that_batches_wait_after_an_error_and_why(
    work: Work, nightshift: Callable[..., Result]
) -> None:
    assert "after an error" not in nightshift("status", "small").stdout
    with work.ledger.transaction() as connection:
        connection.execute(
            text("""UPDATE batches SET not_before = now() + interval '1 hour', last_error = 'slow'
                    WHERE id = (SELECT min(id) FROM batches)""")
        )
    assert "1 batch waits after an error" in nightshift("status", "small").stdout
    assert "at most: slow" in " ".join(nightshift("status", "small").stdout.split())


def test_an_unknown_job_is_one_sentence(work: Work, nightshift: Callable[..., Result]) -> None:
    result = nightshift("status", "nobody")
    assert result.exit_code == 2
    assert result.stderr.startswith("nightshift: there is no job 'nobody'")


def test_a_database_without_tables_is_one_sentence(
    fresh_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", fresh_database(migrated=False))
    result = CliRunner().invoke(app, ["jobs"])
    assert result.exit_code == 2
    assert "run `nightshift migrate`" in result.stderr
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    assert CliRunner().invoke(app, ["jobs"]).stdout == "no jobs yet\n"


def test_a_ledger_that_cannot_be_reached_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", f"postgresql:///db?host={tmp_path}")
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 2
    assert "cannot be reached" in result.stderr
    assert result.stderr.count("\n") == 1


def test_errors_shows_the_failed_rows_and_counts_kinds(
    done: Work, nightshift: Callable[..., Result]
) -> None:
    result = nightshift("errors", "small")
    assert all(word in result.stdout for word in ("k17", "truncated", "row 17 was cut off"))
    assert "in all: 3 truncated" in result.stdout
    assert "k17" not in nightshift("errors", "small", "--kind", "too_long").stdout
    assert "k17" not in nightshift("errors", "small", "-n", "1").stdout
    assert nightshift("errors", "small", "--kind", "nonsense").exit_code == 2


def test_sample_shows_input_beside_output_and_draws_the_same_again(done: Work) -> None:
    drawn = sample(done.ledger, done.job, 10, seed=1)
    assert drawn.inputs == ["key", "words"]
    assert drawn.outputs[0] == "output"
    assert len(drawn.rows) == 10
    for row in drawn.rows:
        index = row["row_index"]
        assert (row["key"], row["words"]) == (f"k{index}", f"words of row {index}")
        assert row["output"] == (None if index in FAILED else f"answer {index}")
    again = sample(done.ledger, done.job, 10, seed=1)
    assert again.rows == drawn.rows
    other = sample(done.ledger, done.job, 10, seed=2)
    assert [row["row_index"] for row in other.rows] != [row["row_index"] for row in drawn.rows]


def test_sample_of_more_than_there_is_shows_all(
    done: Work, nightshift: Callable[..., Result]
) -> None:
    drawn = sample(done.ledger, done.job, 1000, seed=0)
    assert [row["row_index"] for row in drawn.rows] == list(range(ROWS))
    assert "answer 39" in nightshift("sample", "small", "-n", "100").stdout


def test_sample_goes_without_an_input_that_changed(done: Work) -> None:
    (done.folder / "rows.parquet").unlink()
    drawn = sample(done.ledger, done.job, 5, seed=0)
    assert "the input cannot be shown" in drawn.note
    assert len(drawn.rows) == 5


def test_sample_of_nothing_is_refused(work: Work) -> None:
    with pytest.raises(BadInput, match="no finished rows yet"):
        sample(work.ledger, work.job, 5, seed=0)


def test_follow_ends_with_the_job_and_prints_plain_lines(
    done: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = progress.follow(done.ledger, done.job_id, Console(), interval_seconds=0.01)
    assert seen.job.closed_at is not None
    assert capsys.readouterr().out == ("small: 40 of 40 rows (100 %), 3 failed, completed\n")


def test_follow_returns_at_a_pause_and_when_told_to_stop(work: Work) -> None:
    stopped = progress.follow(work.ledger, work.job_id, Console(), stop=lambda: True)
    assert stopped.job.state == "running"
    with work.ledger.transaction() as connection:
        jobs.pause(connection, work.job_id)
    assert progress.follow(work.ledger, work.job_id, Console()).job.state == "paused"


def test_follow_waits_out_an_outage_of_postgres(
    work: Work, second_ledger: Callable[[], Ledger]
) -> None:
    other, looks = second_ledger(), iter(range(10))

    def cut_then_stop() -> bool:
        look = next(looks)
        if look == 1:
            with other.transaction() as connection:
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
        return look == 4

    seen = progress.follow(
        work.ledger, work.job_id, Console(), stop=cut_then_stop, interval_seconds=0.01
    )
    assert seen.job.state == "running"
    assert next(looks) == 5


def test_wait_exits_with_1_when_rows_failed(done: Work, nightshift: Callable[..., Result]) -> None:
    result = nightshift("wait", "small")
    assert result.exit_code == 1
    assert "37 done, 3 failed" in result.stdout
    assert done.spec.output.uri in result.stdout


def test_release_forgets_the_revision_of_the_first_load(
    work: Work, nightshift: Callable[..., Result]
) -> None:
    nothing = nightshift("release", "small", "--revision")
    assert (nothing.exit_code, "nothing to release" in nothing.stderr) == (2, True)
    with work.ledger.transaction() as connection:
        connection.execute(text("UPDATE engines SET revision = 'abc'"))
        connection.execute(text("UPDATE workers SET state = 'ended'"))
    result = nightshift("release", "small", "--revision")
    assert result.exit_code == 0
    assert result.stdout == (
        f"job {work.job_id} (small): held revision abc -> none; its next load decides\n"
    )


def test_control_moves_the_job_and_wait_exits_with_3(
    work: Work, nightshift: Callable[..., Result]
) -> None:
    assert nightshift("pause", "small").exit_code == 0
    assert work.job.state == "paused"
    assert nightshift("wait", "small").exit_code == 3
    assert nightshift("resume", "small").exit_code == 0
    assert work.job.state == "running"
    assert nightshift("cancel", "small").exit_code == 0
    assert work.job.state == "cancelled"
    result = nightshift("resume", "small")
    assert (result.exit_code, result.stderr) == (
        2,
        f"nightshift: job {work.job_id} is cancelled and cannot be resumed\n",
    )


@pytest.mark.slow
def test_without_a_url_the_ledger_of_the_folder_is_found_running_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look starts the embedded server for its own time; a wait says that nobody works."""
    from nightshift.producer.embedded.home import home_lock
    from nightshift.producer.embedded.postgres import EmbeddedPostgres

    monkeypatch.delenv("NIGHTSHIFT_DATABASE_URL", raising=False)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with home_lock(tmp_path / "home") as lock:
        server = EmbeddedPostgres()
        url = server.start(tmp_path / "home")
        (tmp_path / "home" / "database_url").write_text(url)
        lock.share()
        ledger = Ledger(url)
        try:
            assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
            Work(ledger, tmp_path)
            assert "small" in CliRunner().invoke(app, ["jobs"]).stdout
        finally:
            ledger.close()
            server.stop()
    assert "small" in CliRunner().invoke(app, ["jobs"]).stdout
    waited = CliRunner().invoke(app, ["wait", "small"])
    assert (waited.exit_code, waited.stderr) == (
        2,
        "nightshift: no worker runs job 1: `nightshift run SPEC` works on it\n",
    )


# ---------------------------------------------------------------- collect


@pytest.mark.parametrize("part_format", ["parquet", "jsonl"])
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_collect_gives_every_row_in_dataset_order(
    ledger: Ledger, tmp_path: Path, part_format: str, suffix: str
) -> None:
    work = Work(ledger, tmp_path, part_format, "ordered")
    work.to_the_end()
    target = tmp_path / f"all.{suffix}"
    assert collect(ledger, work.job, str(target)) == ROWS
    if suffix == "parquet":
        table = pq.read_table(target)
        assert table.schema.equals(work.schema)
        rows = table.to_pylist()
    else:
        rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["row_index"] for row in rows] == list(range(ROWS))
    assert [row["key"] for row in rows] == [f"k{row}" for row in range(ROWS)]
    assert [row["row_index"] for row in rows if row["error"] is not None] == list(FAILED)
    assert rows[17]["error"] == {"kind": "truncated", "message": "row 17 was cut off"}
    assert [path.name for path in tmp_path.glob(".all*")] == []


def test_collect_refuses_an_unfinished_job_unless_partial(work: Work, tmp_path: Path) -> None:
    work.commit(work.claim(1)[0])
    target = tmp_path / "some.parquet"
    with pytest.raises(BadInput, match="32 rows have no output: --partial"):
        collect(work.ledger, work.job, str(target))
    assert not target.exists()
    assert collect(work.ledger, work.job, str(target), partial=True) == BATCH


def test_collect_refuses_what_is_there_unless_forced(done: Work, tmp_path: Path) -> None:
    target = tmp_path / "all.parquet"
    target.write_text("precious")
    with pytest.raises(BadInput, match="--force"):
        collect(done.ledger, done.job, str(target))
    assert target.read_text() == "precious"
    assert collect(done.ledger, done.job, str(target), force=True) == ROWS


def test_collect_refuses_other_formats_and_the_output_directory(done: Work, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the suffix says the format"):
        collect(done.ledger, done.job, str(tmp_path / "all.tsv"))
    with pytest.raises(BadInput, match="inside the output directory"):
        collect(done.ledger, done.job, str(done.output / "all.parquet"))


def test_collect_that_fails_leaves_no_file(
    done: Work, nightshift: Callable[..., Result], tmp_path: Path
) -> None:
    done.some_part().unlink()
    result = nightshift("collect", "small", "--to", "all.parquet")
    assert result.exit_code == 2
    assert "is gone" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet", "small"]


# ---------------------------------------------------------------- verify


@pytest.mark.parametrize("part_format", ["parquet", "jsonl"])
def test_verify_finds_nothing_in_a_clean_job(
    ledger: Ledger, tmp_path: Path, part_format: str
) -> None:
    work = Work(ledger, tmp_path, part_format, "clean")
    work.to_the_end()
    assert messages(work) == []


def test_the_directory_of_a_finished_job_is_the_dataset(done: Work) -> None:
    table = ds.dataset(str(done.output), format="parquet").to_table()
    assert sorted(table.column("row_index").to_pylist()) == list(range(ROWS))


def test_verify_prints_ok_lines_and_exits_with_0(
    done: Work, nightshift: Callable[..., Result]
) -> None:
    result = nightshift("verify", "small")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert any("40 ids equal those of the input" in line for line in lines)


def test_verify_finds_nothing_in_a_running_job(work: Work) -> None:
    assert messages(work) == []
    first, second, *rest = work.claim()
    work.commit(first)
    work.split(second, RowRanges.of((8, 10)))
    with work.ledger.transaction() as connection:
        leasing.release(connection, rest[:1])
        failures.fail(
            connection, rest[1], "no luck", permanent=True, max_attempts=3, backoff_seconds=1
        )
    assert messages(work) == []


def test_verify_finds_nothing_after_dead_lost_and_halved_batches(work: Work) -> None:
    leases = work.claim()
    with work.ledger.transaction() as connection:
        failures.fail(
            connection, leases[0], "no luck", permanent=True, max_attempts=3, backoff_seconds=1
        )
    for lease in leases[2:]:
        work.commit(lease)
    for _ in range(3):
        with work.ledger.transaction() as connection:
            leasing.lose_owner(connection, WORKER, "killed")
        leases = work.claim()
    for lease in [*leases, *work.claim()]:
        work.commit(lease)
    finish.finish(work.ledger, work.job_id)
    assert work.job.state == "failed"
    assert messages(work) == []


def test_verify_finds_nothing_after_a_cancel(work: Work) -> None:
    first, *rest = work.claim(3)
    work.commit(first)
    with work.ledger.transaction() as connection:
        jobs.cancel(connection, work.job_id)
        leasing.release(connection, rest)
    finish.finish(work.ledger, work.job_id)
    assert messages(work) == []


def drop_part(work: Work) -> None:
    work.some_part().unlink()


def change_byte(work: Work) -> None:
    content = bytearray(work.some_part().read_bytes())
    content[10] ^= 1
    work.some_part().write_bytes(content)


def cut_part(work: Work) -> None:
    work.some_part().write_bytes(work.some_part().read_bytes()[:-10])


def replace_part(work: Work, change: Callable[[pa.Table], pa.Table]) -> None:
    """Another content, with ledger and manifest told its new size and checksum."""
    path = work.some_part()
    table = change(pq.read_table(path))
    path.unlink()
    facts = part_rows.write_part(str(path), table, "parquet", {})
    work.sql(
        "UPDATE batches SET part_bytes = :bytes, part_checksum = :sum WHERE part_name = :name",
        bytes=facts.bytes,
        sum=facts.checksum,
        name=path.name,
    )


def double_row(work: Work) -> None:
    replace_part(
        work, lambda table: pa.concat_tables([table, table.slice(0, 1)]).sort_by("row_index")
    )


def lose_row(work: Work) -> None:
    replace_part(work, lambda table: table.slice(1))


def swap_ids(work: Work) -> None:
    replace_part(
        work,
        lambda table: table.set_column(
            1, "key", pc.replace_substring(table.column("key"), "k", "j")
        ),
    )


def foreign_file(work: Work) -> None:
    (work.output / "part-000099-a1.parquet").write_bytes(b"PAR1")


def staged_file(work: Work) -> None:
    (work.output / "_attempts").mkdir(exist_ok=True)
    (work.output / "_attempts" / "part-000099-a1.parquet").write_bytes(b"PAR1")


def drift(work: Work) -> None:
    work.sql("""INSERT INTO job_counters SELECT :job, 0, 1, -1, 0, 0, 0, 0, 0, 0, 0""")


def lose_attempt(work: Work) -> None:
    work.sql("DELETE FROM attempts WHERE batch_id = (SELECT max(batch_id) FROM attempts)")


def other_outcome(work: Work) -> None:
    work.sql("UPDATE attempts SET outcome = 'lost' WHERE outcome = 'split'")


def forget_error(work: Work) -> None:
    work.sql("DELETE FROM row_errors WHERE row_index = 17")


def invent_error(work: Work) -> None:
    work.sql("""INSERT INTO row_errors (job_id, row_index, batch_id, kind, message)
                VALUES (:job, 20, 1, 'refused', 'never')""")


def other_error(work: Work) -> None:
    work.sql("UPDATE row_errors SET kind = 'refused' WHERE row_index = 17")


def shift_tokens(work: Work) -> None:
    work.sql("UPDATE batches SET prompt_tokens = prompt_tokens + 1 WHERE part_name IS NOT NULL")


def lose_batch(work: Work) -> None:
    work.sql("DELETE FROM batches WHERE id = (SELECT max(id) FROM batches)")


def overlap(work: Work) -> None:
    work.sql("""UPDATE batches SET rows = '{[0,8)}'
                WHERE rows = '{[16,24)}' AND job_id = :job""")


def other_owner(work: Work) -> None:
    (work.output / "_owner.json").write_text('{"ledger": "another", "identity": "another"}')


def no_manifest(work: Work) -> None:
    (work.output / "_manifest.json").unlink()


def stale_manifest(work: Work) -> None:
    path = work.output / "_manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["parts"][0]
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (drop_part, "does not exist"),
        (change_byte, "does not match its checksum"),
        (cut_part, "bytes and not"),
        (double_row, "more than once"),
        (lose_row, "not in the output"),
        (swap_ids, "are not the input's"),
        (foreign_file, "holds what the ledger does not name: part-000099"),
        (staged_file, "is not empty"),
        (other_owner, "belongs to another job or ledger by now"),
        (drift, "counters: rows_done says 38 and the batches say 37"),
        (lose_attempt, "claimed 1 times, and attempts has 0 rows"),
        (other_outcome, "which ended as lost"),
        (forget_error, "rows 17 failed, and the ledger does not"),
        (invent_error, "the ledger says that rows 20 failed"),
        (other_error, "rows 17 carry another error"),
        (shift_tokens, "holds prompt_tokens"),
        (lose_batch, "the batches cover"),
        (overlap, "in more than one batch"),
        (no_manifest, "cannot be read"),
        (stale_manifest, "differ about part-000000"),
    ],
)
def test_verify_finds_each_kind_of_damage(
    done: Work, damage: Callable[[Work], None], finding: str
) -> None:
    damage(done)
    found = messages(done)
    assert any(finding in message for message in found), found


def test_verify_exits_with_1_and_says_what_is_bad(
    done: Work, nightshift: Callable[..., Result]
) -> None:
    drop_part(done)
    result = nightshift("verify", "small")
    assert result.exit_code == 1
    assert "bad" in result.stdout


def test_verify_finds_a_lease_without_a_living_owner(work: Work) -> None:
    work.claim(1)
    assert messages(work) == []
    work.sql("UPDATE workers SET state = 'ended', ended_at = now()")
    assert any("its owner is ended" in message for message in messages(work))
    work.sql("UPDATE workers SET state = 'ready', ended_at = NULL")
    work.sql("UPDATE batches SET lease_expires_at = now() - interval '1 s' WHERE state = 'leased'")
    assert any("its lease ran out" in message for message in messages(work))


def test_verify_does_not_hold_a_changed_input_against_the_output(done: Work) -> None:
    (done.folder / "rows.parquet").unlink()
    assert messages(done) == []


def test_verify_spells_out_only_so_many_findings(done: Work) -> None:
    for path in done.output.glob("part-*"):
        path.unlink()
    done.sql(
        "UPDATE batches SET state = 'split', part_name = NULL, part_checksum = NULL, "
        "part_bytes = NULL WHERE false"
    )
    assert len([one for one in messages(done) if "does not exist" in one]) == 6
