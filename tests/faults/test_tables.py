"""Reapers die at every step of a commit to a table, stand still there, and race, while others append, retry, cancel,
delete and write to the same table: at each moment the table has all rows of what is committed together, or none.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import text

from nightshift.common.errors import BadInput, TableTaken
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer import under_way
from nightshift.producer.control import garbage, job_moves
from nightshift.producer.control.deletion import delete
from nightshift.producer.reaper import generation_files
from nightshift.producer.retry import retry
from nightshift.producer.submit.submit import submit
from nightshift.producer.tables import commit, keep
from nightshift.producer.verify.verify import verify
from tests.integration.test_retry import moody
from tests.support.fleet import function_spec
from tests.support.lake import TableSite
from tests.support.table_reapers import Order, Site, TableReaper

KILLS = 40
"""So many at least in the steps of a commit, and one at each of them."""

MOST_ROUNDS = 60

ROUNDS_A_TABLE = 5

STEPS = (
    Moment.FINISHING,
    Moment.TABLE_INTENDED,
    Moment.TABLE_CHECKED,
    None,
    None,
    None,
    Moment.TABLE_WRITTEN,
    Moment.TABLE_NOTED,
    Moment.CLOSING,
)
"""In the order of a finish, of which all but the first are those of a commit; None stands for the inside of the library's own commit."""

LONGEST_WRITE_SECONDS = {"delta": 0.008, "iceberg": 0.04}
"""About as long as a library takes for a commit of a few files."""

MOST_CALLS = 4
"""A commit of pyiceberg stores a manifest, the list of manifests and the metadata, and writes to its catalog."""

SHOUT, MOODY = moody(), moody(3)

Row = tuple[str, str, bool]
"""Of the table: the job or the writer that it is of, its id, and whether it has an answer."""

Rows = frozenset[Row]


@dataclass
class Scope:
    """Rows that are committed together. `variants` are the states that the table may have of them, in their order:
    with failed rows, and after a retry.
    """

    ids: list[str]
    variants: list[Rows] = field(default_factory=list)
    seen: int = -1


@dataclass
class Run:
    """The job of a round. `replaces` are the rows that its first commit takes out of the table."""

    site: TableSite
    name: str
    mode: str
    scopes: list[Scope]
    replaces: Rows = frozenset()
    waiting: list[str] = field(default_factory=list)
    at_cancel: Rows | None = None
    has_failed: bool = False
    kept_ids: frozenset[str] = frozenset()
    """Ids of the table before a merge: a row with an error replaces none of them."""

    def rows(self, ids: list[str], failing: bool) -> Rows:
        every = frozenset((self.name, each, not (failing and each.endswith("3"))) for each in ids)
        return frozenset(row for row in every if row[2] or row[1] not in self.kept_ids)


class Lake:
    """One table after the other, with jobs and foreign writers, and what each table must hold."""

    def __init__(
        self, kind: str, ledger: Ledger, url: str, folder: Path, chance: random.Random
    ) -> None:
        self.kind, self.ledger, self.url, self.folder = kind, ledger, url, folder
        self.chance = chance
        self.settled: Rows = frozenset()
        self.foreign: set[Row] = set()
        self.kills: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.frozen: list[TableReaper] = []
        self.old: list[Job] = []
        self.rounds = 0
        self.log = folder / "reapers.log"
        self._begin_table(0)

    def _begin_table(self, boots: int) -> None:
        folder = self.folder / f"table{self.rounds}"
        folder.mkdir()
        self.site = TableSite(self.ledger, folder, kind=self.kind, boots=boots)
        if self.kind == "iceberg":
            self.site.make_namespace()
        self.settled, self.old = frozenset(), []
        self.foreign.clear()

    # ------------------------------------------------------------ jobs

    def submit(self, mode: str) -> None:
        name = f"job{self.rounds}"
        site, chance = self.site, self.chance
        before = sorted(row[1] for row in self.settled if row[0] != "foreign")
        stem = before[0].partition("-")[0] if before and mode == "merge" else f"{name}a"
        ids = self._write(name, stem, chance.choice([20, 30]))
        source = site.folder / f"in-{name}"
        data = function_spec(name, source, site.root / name, batch={"rows": 10})
        data["input"]["unique_id"] = True
        data["output"]["columns"] = ["text"]
        data["output"]["schema"] = {"loud": "string"}
        data["output"]["table"] = site.table_spec(mode=mode, keep_days=chance.choice([0, 7]))
        site.job_id = submit(self.ledger, parse_spec(data, "test"), site.settings).job_id
        self.run = Run(site, name, mode, [Scope(ids)])
        if mode == "merge":
            self.run.kept_ids = frozenset(row[1] for row in self.settled)
        if mode == "overwrite":
            self.run.replaces = self.settled

    def _write(self, name: str, stem: str, count: int) -> list[str]:
        ids = [f"{stem}-{number}" for number in range(count)]
        source = self.site.folder / f"in-{name}"
        source.mkdir(exist_ok=True)
        table = pa.table({"id": ids, "text": [name] * count})
        pq.write_table(table, source / f"{len(list(source.iterdir()))}.parquet")
        return ids

    def work(self, *, failing: bool = False, again: bool = False) -> None:
        """A worker runs all that waits, with `again` the rows that failed, too; what the table may have from now on
        is known before.
        """
        run = self.run
        for scope in run.scopes:
            rows = run.rows(scope.ids, failing)
            if not scope.variants or (again and scope.variants[-1] != rows):
                scope.variants.append(rows)
        run.site.run(MOODY if failing else SHOUT)

    def grow(self) -> bool:
        """New files become a generation, whose rows have not run."""
        run = self.run
        stem = f"{run.name}x{self.done['append'] + self.refused['append']}"
        run.waiting += self._write(run.name, stem, 10)
        if run.site.append().appended.generation is None:
            return False
        run.scopes.append(Scope(run.waiting))
        run.waiting = []
        return True

    # ------------------------------------------------------------ what goes on beside the commits

    def beside(self, names: list[str]) -> threading.Thread:
        """Makes these changes, each of them done or refused in a sentence; an error of the thread is one of the test."""
        thread = Beside(lambda: [self._attempt(name) for name in names])
        thread.start()
        return thread

    def _attempt(self, name: str) -> None:
        try:
            done = getattr(self, f"do_{name}")()
        except (TableTaken, BadInput) as error:
            self.refused[name] += 1
            self.reasons.append(str(error))
        else:
            self.done[name] += done is not False

    def do_append(self) -> bool:
        if not self.grow():
            return False
        self.work()
        return True

    def do_retry(self) -> bool:
        run, job = self.run, self.run.site.job
        failed = job.state is JobState.FAILED
        before = run.replaces
        if failed and run.mode == "overwrite":
            run.replaces = self.settled | self.foreign
        try:
            again = retry(
                self.ledger, job, failed=True, dead=failed, kind=None, settings=run.site.settings
            )
        except (TableTaken, BadInput):
            run.replaces = before
            raise
        if not again.batches:
            return failed
        self.work(again=True)
        return True

    def do_cancel(self) -> bool:
        run = self.run
        if not job_moves.cancel(self.ledger, run.site.job).changes:
            return False
        run.at_cancel = frozenset(row for row in self._rows() if row[0] == run.name)
        return True

    def do_delete(self) -> bool:
        if not self.old:
            return False
        job = self.chance.choice(self.old)
        delete(self.ledger, job, self.site.settings, output=self.chance.random() < 0.7)
        self.old.remove(job)
        return True

    def do_gc(self) -> None:
        facts = garbage.collect(self.ledger, self.site.settings, sure=True).facts
        assert (facts["unseen"], facts["refused"]) == ({}, [])

    def do_expire(self) -> None:
        keep.remove_expired(self.ledger, self.site.settings)

    def do_foreign(self) -> bool:
        """Somebody else commits a row to the table."""
        if not self.site.exists():
            return False
        row = ("foreign", f"foreign-{self.rounds}x{self.done['foreign']}", True)
        mine = pa.table({"text": [row[0]], "id": [row[1]]})
        if self.kind == "delta":
            write_deltalake(str(self.site.root), mine, mode="append", schema_mode="merge")
        else:
            table = self.site.iceberg
            columns = table.schema().as_arrow()
            try:
                table.append(
                    pa.table(
                        {
                            each.name: mine.column(each.name)
                            if each.name in mine.column_names
                            else pa.nulls(1, each.type)
                            for each in columns
                        },
                        columns,
                    )
                )
            except CommitFailedException:
                return False
        self.foreign.add(row)
        return True

    def do_checkpoints(self) -> bool:
        """Each third commit of the table, and all that comes later, also writes a checkpoint."""
        if self.kind == "iceberg" or not self.site.exists():
            return False
        self.site.delta.alter.set_table_properties({"delta.checkpointInterval": "3"})
        return True

    # ------------------------------------------------------------ what must hold

    def _rows(self) -> list[Row]:
        if not self.site.exists():
            return []
        table = self.site.rows()
        columns = [table.column(name).to_pylist() for name in ("text", "id", "error")]
        return [(text, row_id, error is None) for text, row_id, error in zip(*columns, strict=True)]

    def check(self) -> Rows:
        """All or nothing of each scope, nothing twice, and every file is there; returns the rows of the job."""
        run, found = self.run, self._rows()
        own = frozenset(row for row in found if row[0] == run.name)
        expected = Counter(self.settled | self.foreign)
        for scope in run.scopes:
            ids = set(scope.ids)
            mine = frozenset(row for row in own if row[1] in ids)
            assert not mine or mine in scope.variants, (run, mine)
            at = scope.variants.index(mine) if mine else -1
            assert at >= scope.seen, (run, at)
            scope.seen = at
            expected += Counter(mine)
        if own:
            expected -= Counter(run.replaces)
            if run.mode == "merge":
                ids = {row[1] for row in own}
                expected -= Counter(row for row in self.settled if row[1] in ids)
        assert Counter(found) == expected, (
            run,
            Counter(found) - expected,
            expected - Counter(found),
        )
        self._check_files()
        return own

    def _rows_by_ledger(self, job: Job) -> tuple[int, int]:
        """How many rows of the job the table has, and how many of them failed, as the ledger knows it; nobody is at it
        now.
        """
        with self.ledger.transaction() as connection:
            assert not connection.scalar(
                text("SELECT count(*) FROM table_commits WHERE state = 'open'")
            )
            every, failed = connection.execute(
                text(
                    "SELECT coalesce(sum(rows), 0), coalesce(sum(rows_failed), 0) FROM table_files "
                    "WHERE job_id = :id AND part_name = ANY(:names)"
                ),
                {"id": job.id, "names": list(table_commits.in_table(connection, job.id))},
            ).one()
        return int(every), int(failed)

    def _check_files(self) -> None:
        for path, size in self._files():
            assert path.stat().st_size == size, path

    def _files(self) -> Iterator[tuple[Path, int]]:
        if not self.site.exists():
            return
        if self.kind == "delta":
            actions = pa.table(self.site.delta.get_add_actions(flatten=True))
            for path, size in zip(
                actions.column("path").to_pylist(),
                actions.column("size_bytes").to_pylist(),
                strict=True,
            ):
                yield self.site.root / path, size
        else:
            for task in self.site.iceberg.scan().plan_files():
                yield (
                    Path(task.file.file_path.removeprefix("file://")),
                    task.file.file_size_in_bytes,
                )

    # ------------------------------------------------------------ reapers

    def order(self, at: int) -> Order:
        """A death or a standstill at a step."""
        moment, chance = STEPS[at], self.chance
        if moment is not None:
            return Order(moment, stops=chance.random() < 0.2)
        if self.kind == "delta" or chance.random() < 0.4:
            return Order(seconds=chance.uniform(0, LONGEST_WRITE_SECONDS[self.kind]))
        return Order(
            calls=chance.randint(1, MOST_CALLS),
            is_after=chance.random() < 0.3,
            stops=chance.random() < 0.1,
        )

    def turn(self, orders: list[Order], work: str, besides: list[str]) -> None:
        """Reapers at once, with other changes beside them; those that stand still go on after others."""
        run = self.run
        site = Site(self.url, run.site.settings.catalogs, run.site.job_id)
        with self.ledger.transaction() as connection:
            connection.exec_driver_sql("UPDATE holds SET until = '-infinity'")
        reapers = [TableReaper(site, work, order, self.log) for order in orders]
        thread = self.beside(besides)
        ends = [reaper.wait() for reaper in reapers]
        thread.join()
        for reaper, end in zip(reapers, ends, strict=True):
            self._take(reaper, end)
        self.check()

    def _take(self, reaper: TableReaper, end: str) -> None:
        if end == "stopped":
            self.frozen.append(reaper)
            self.kills["stopped"] += 1
        elif end == "killed":
            self.kills[str(reaper.order)] += 1

    def thaw(self) -> None:
        """All that stand still go on, with what they saw long ago."""
        for reaper in self.frozen:
            reaper.go_on()
            assert reaper.wait() == "done"
        self.frozen = []
        self.check()

    def chain(self, work: str, besides: list[str]) -> None:
        """One step of a commit after the other, some of them often."""
        chance = self.chance
        steps = sorted(chance.sample(range(len(STEPS)), chance.randint(3, 6)))
        for at in steps:
            rivals = chance.choice([1, 2, 2, 3])
            near = [min(max(at + chance.randint(-1, 1), 0), len(STEPS) - 1) for _ in range(rivals)]
            orders = [self.order(each) for each in (at, *near[1:])]
            if chance.random() < 0.1:
                orders.append(Order())
            some = chance.sample(besides, min(len(besides), chance.choice([0, 1, 2])))
            self.turn(orders, work, some)
            if chance.random() < 0.3:
                self.thaw()

    def round(self, mode: str, plot: str) -> None:
        """One job: its rows, its reapers, what happens to it meanwhile, and its end."""
        chance = self.chance
        if self.rounds % ROUNDS_A_TABLE == 0 and self.rounds:
            self.thaw()
            self._begin_table(self.site.boots)
        self.submit(mode)
        self.work(failing=chance.random() < 0.6)
        usual = ["gc", "expire", "delete", "foreign", "checkpoints"]
        if plot == "growing":
            self.grow()
            self.chain("generations", [*usual, "cancel"])
            if self.run.at_cancel is None:
                self.work()
        changes = {"append": ["append"], "retry": ["retry"], "cancel": ["cancel"], "growing": []}
        self.chain(chance.choice(["finish", "finish", "duty"]), [*usual, *changes[plot] * 2])
        if plot in ("append", "retry"):
            self._attempt(plot)
            self.chain("finish", [*usual, "append", "retry"])
        self._end()
        self.rounds += 1

    def _end(self) -> None:
        """A reaper that nothing happens to; then the table has what the ledger says."""
        run, ledger = self.run, self.ledger
        for _ in range(3):
            if run.site.job.closed_at is None:
                generation_files.write_finished(ledger)
                commit.commit_finished(ledger, run.site.settings)
                run.site.finish()
        job = run.site.job
        assert job.closed_at is not None
        if self.chance.random() < 0.5:
            self.thaw()
        own = self.check()
        # Nobody compacts here.
        assert not any("compacted" in reason for reason in self.reasons), self.reasons
        if job.state is JobState.COMPLETED:
            assert [scope.seen for scope in run.scopes] == [
                len(scope.variants) - 1 for scope in run.scopes
            ]
        elif job.state is JobState.CANCELLED:
            assert own == run.at_cancel
            assert job.reason is None
        else:
            assert run.mode == "overwrite"
            assert "which mode overwrite would lose" in str(job.reason)
            assert not own
        every, failed = self._rows_by_ledger(job)
        assert sum(answered for *_, answered in own) == every - failed
        assert len(own) == every or run.mode == "merge"
        # A job that nobody can finish is closed without a manifest.
        assert job.state is JobState.FAILED or verify(ledger, job) == []
        self.done[f"{run.mode} {job.state}"] += 1
        self.settled = frozenset(self._rows())
        self.foreign.clear()
        self.old.append(job)
        self.run = Run(run.site, "nobody", "append", [])


class Beside(threading.Thread):
    """A thread whose error is raised by `join`."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self._act = act
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._act()
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._error is not None:
            raise self._error


ROUNDS = (
    ("append", "retry"),
    ("append", "growing"),
    ("append", "cancel"),
    ("append", "append"),
    ("overwrite", "retry"),
    ("overwrite", "append"),
    ("merge", "retry"),
    ("merge", "retry"),
    ("merge", "cancel"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_reapers_that_die_at_any_step_leave_all_rows_in_the_table_or_none(
    kind: str,
    ledger: Ledger,
    database_url: str,
    tmp_path: Path,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_way, "MOST_SECONDS", 0.3)
    monkeypatch.setattr(under_way, "PAUSE_SECONDS", 0.05)
    lake = Lake(kind, ledger, database_url, tmp_path, chance)
    try:
        for _ in range(MOST_ROUNDS):
            if not lake.rounds % len(ROUNDS):
                plan = chance.sample(ROUNDS, len(ROUNDS))
            lake.round(*plan[lake.rounds % len(ROUNDS)])
            if is_enough(lake.kills):
                break
    finally:
        print(
            f"{lake.rounds} rounds", dict(lake.kills), dict(lake.done), dict(lake.refused), sep="\n"
        )
        for reaper in lake.frozen:
            reaper.end()
    assert is_enough(lake.kills)


def is_enough(kills: Counter[str]) -> bool:
    at_moments = {str(moment) for moment in STEPS if moment is not None}
    elsewhere = kills["stopped"] + kills[Moment.FINISHING]
    return (
        kills.total() - elsewhere >= KILLS
        and at_moments <= kills.keys()
        and any("library" in order for order in kills)
    )
