"""One thread runs several batches: what happens to one of them stays with that one."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from nightshift.common import storage
from nightshift.common.errors import (
    BadInput,
    EngineEnded,
    EngineGone,
    EngineRefused,
    EngineUnavailable,
    JobRefused,
    NeedsOtherEngine,
    StorageUnavailable,
)
from nightshift.common.formats import input_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, dispatch
from nightshift.common.ledger.batches.records import Claimant, Lease
from nightshift.common.ledger.jobs import job_end, jobs, spending
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.storage import local
from nightshift.producer.submit.submit import submit
from nightshift.worker.batch.inference import LoadedBatch
from nightshift.worker.batch.load import Loader
from nightshift.worker.batch.run import GATHER_SECONDS, BatchRunner
from nightshift.worker.child_context import ChildContext
from nightshift.worker.engines.protocol import Answer, Work
from nightshift.worker.heartbeat import GIVES_BACK, HUNG_THREADS, Heartbeat
from nightshift.worker.held_batch import GivenBack, HeldBatch, Move, Reason, State
from nightshift.worker.outages import PatientLedger
from nightshift.worker.outputs import MOST_REFUSALS, UNPROVED_SECONDS
from nightshift.worker.publish import publish
from nightshift.worker.supervisor.liveness import ChildLiveness
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window
from tests.support.fleet import function_spec, wait_until, write_rows
from tests.support.scripted import Scripted

ROWS = 6

RUNS_GROUP = "runs a group"
"""Name of a thread of a test that runs batches."""


class Scene:
    """A job of small batches, all claimed, and a thread that runs them."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        batch_rows: int = 1,
        roots: tuple[str, ...] = (),
        texts: Sequence[str] = (),
        **sections: Any,
    ) -> None:
        settings = Settings(allowed_roots=roots)
        self.ledger = ledger
        self.output = folder / "out"
        write_rows(folder / "in", [("a.parquet", ROWS)])
        if texts:
            rows = [{"id": f"a-{number}", "text": text} for number, text in enumerate(texts)]
            pq.write_table(pa.Table.from_pylist(rows), folder / "in" / "a.parquet")
        sections = {"batch": {"rows": batch_rows}, **sections}
        data = function_spec("grouped", folder / "in", self.output, **sections)
        spec = parse_spec(data, "test")
        job_id = submit(ledger, spec, settings).job_id
        self.job_id = job_id
        self.who = Claimant("mine", "default", spec.engine_key, "function", "1")
        leases = self.claim()
        self.engine = Scripted()
        self.window = Window(128)
        self.died: list[list[str]] = []
        self.left: list[str] = []
        self.patient = PatientLedger(ledger, Recorder())
        self.child = ChildContext(
            self.who,
            self.patient,
            self.engine,
            settings,
            self.window,
            Recorder(),
            lambda _error: self.died.append(self.states()),
            lambda _code, why: self.left.append(why),
        )
        self.runner = BatchRunner(self.child)
        self.group = [HeldBatch(lease, len(lease.todo)) for lease in leases]
        for batch in self.group:
            self.window.add(batch)

    def claim(self) -> list[Lease]:
        """Claims all batches that wait."""
        with self.ledger.transaction() as connection:
            dispatch.admit(connection, self.job_id, ROWS, 1)
            return claims.claim(
                connection,
                self.who,
                room_rows=ROWS,
                max_batches=ROWS,
                idle=True,
                woken="poll",
                lease_seconds=600,
            )

    def run(self, group: Sequence[HeldBatch] | None = None) -> threading.Thread:
        given = (group or self.group,)
        thread = threading.Thread(target=self.runner.run, args=given, name=RUNS_GROUP, daemon=True)
        thread.start()
        return thread

    def wait_taken(self, count: int) -> None:
        wait_until(lambda: len(self.engine.taken) == count, what="the engine's batches")

    def wait_gone(self, *numbers: int) -> None:
        gone = {self.group[number] for number in numbers}
        wait_until(lambda: gone.isdisjoint(self.window.held()), what="the end of the batches")

    def watch_commits(self, happened: Callable[[], object] = lambda: None) -> list[int]:
        """How many batches each transaction commits, from now on."""
        sent: list[int] = []
        publisher = self.runner.publisher
        original = publisher.commits._commit_group

        def committed(commits: Sequence[Any]) -> Sequence[bool | Exception]:
            happened()
            sent.append(len(commits))
            return original(commits)

        publisher.commits._commit_group = committed  # type: ignore[method-assign]
        return sent

    def heartbeat(self, **settings: Any) -> Heartbeat:
        """A heartbeat of the child that beats when a test says so."""
        self.stalls: list[str] = []
        settings = Settings(lease_seconds=600, **settings)
        return Heartbeat(
            replace(self.child, settings=settings, engine_died=self.stalls.append),
            self.ledger,
            ChildLiveness(settings, "mine"),
            self.runner.give_back,
            lambda _seconds: False,
        )

    def losses(self) -> int:
        with self.ledger.transaction() as connection:
            found = connection.scalar(text("SELECT sum(losses + failures) FROM batches"))
        return int(found)

    def states(self) -> list[str]:
        return [state for state, _ in self._batches()]

    def errors(self) -> list[str | None]:
        return [error for _, error in self._batches()]

    def _batches(self) -> list[Any]:
        with self.ledger.transaction() as connection:
            found = connection.execute(text("SELECT state, last_error FROM batches ORDER BY id"))
            return [(row.state, row.last_error) for row in found]

    def parts(self) -> int:
        return len(list(self.output.glob("*.parquet")))

    def is_over(self) -> bool:
        return not self.window.held() and self.window.room()[0] == self.window.rows


@pytest.fixture(autouse=True)
def threads_end(ledger: Ledger) -> Iterator[None]:
    """No thread uses the ledger any more when it is closed, or its connection would stay open."""
    yield
    for thread in threading.enumerate():
        if thread.name in (RUNS_GROUP, GIVES_BACK):
            thread.join(60)


@pytest.fixture
def scene(ledger: Ledger, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(ledger, tmp_path)
    yield found
    found.patient.given_up.set()


class Hang:
    """Lets the thread of the batch with one row hang at a stage, until it is `over`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.over = threading.Event()

    def begin(self, stage: str, row: int = 0) -> None:
        """From now on the thread that comes to the `stage` (read, written, moved) of the row hangs."""
        reached = self.reached = threading.Event()
        read, write, move = input_rows.read_rows, storage.write_bytes, storage.move
        part = f"part-{row:06}"

        def hang_if(here: bool) -> None:
            if here:
                reached.set()
                assert self.over.wait(60)

        def slow_read(spec: Any, descriptor: Any, *more: Any, **how: Any) -> Any:
            hang_if(stage == "read" and row in descriptor.rows)
            return read(spec, descriptor, *more, **how)

        def slow_write(uri: str, data: Any, **how: Any) -> storage.Written:
            hang_if(stage == "written" and part in uri)
            return write(uri, data, **how)

        def slow_move(source: str, *given: Any) -> None:
            hang_if(stage == "moved" and part in source)
            move(source, *given)

        self._patch.setattr(input_rows, "read_rows", slow_read)
        self._patch.setattr(storage, "write_bytes", slow_write)
        self._patch.setattr(storage, "move", slow_move)


@pytest.fixture
def hangs_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    found = Hang(monkeypatch)
    yield found
    found.over.set()


@pytest.fixture
def read_then(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Calls something before each read, with its number."""
    original, count = Loader.load, iter(range(1000))

    def install(before: Callable[[int], None]) -> None:
        def read(self: BatchRunner, batch: HeldBatch) -> LoadedBatch:
            before(next(count))
            return original(self, batch)

        monkeypatch.setattr(Loader, "load", read)

    return install


def test_what_left_the_engine_meanwhile_is_committed_together(
    scene: Scene, read_then: Callable[[Callable[[int], None]], None]
) -> None:
    sent = scene.watch_commits()

    def answer_all_before(number: int) -> None:
        if number == ROWS - 1:
            for at in range(ROWS - 1):
                scene.engine.answer(at)

    read_then(answer_all_before)
    thread = scene.run()
    wait_until(lambda: len(sent) == 1, what="a commit")
    scene.engine.answer(ROWS - 1)
    thread.join(60)
    assert sent == [ROWS - 1, 1]
    assert scene.states() == ["done"] * ROWS
    assert scene.parts() == ROWS
    assert scene.is_over()


def test_a_slow_read_holds_back_no_finished_neighbour(
    scene: Scene, read_then: Callable[[Callable[[int], None]], None]
) -> None:
    seen: list[list[str]] = []

    def answer_slowly(number: int) -> None:
        seen.append(scene.states())
        if number == 1:
            scene.engine.answer(0)
            time.sleep(2 * GATHER_SECONDS)

    read_then(answer_slowly)
    thread = scene.run()
    scene.wait_taken(ROWS)
    assert seen[2][0] == "done"
    for at in range(1, ROWS):
        scene.engine.answer(at)
    thread.join(60)
    assert scene.states() == ["done"] * ROWS


@pytest.mark.parametrize("error", [BadInput("no"), StorageUnavailable("away"), RuntimeError("?")])
def test_a_batch_that_cannot_be_read_stops_no_neighbour(
    scene: Scene, read_then: Callable[[Callable[[int], None]], None], error: Exception
) -> None:
    def break_the_second(number: int) -> None:
        if number == 1:
            raise error

    read_then(break_the_second)
    thread = scene.run()
    scene.wait_taken(ROWS - 1)
    for at in range(ROWS - 1):
        scene.engine.answer(at)
    thread.join(60)
    wanted = "dead" if isinstance(error, BadInput) else "pending"
    assert scene.states() == ["done", wanted, *["done"] * (ROWS - 2)]
    assert scene.errors()[1] == str(error)
    assert scene.is_over()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_was_finished_is_committed_before_the_child_of_a_dead_engine_ends(
    scene: Scene, order: tuple[int, int]
) -> None:
    scene.engine.start = _at_once(scene.engine, order)  # type: ignore[method-assign]
    thread = scene.run(scene.group[:2])
    thread.join(60)
    assert [sorted(states)[:1] for states in scene.died] == [["done"]]


def test_rows_that_an_engine_leaves_without_an_outcome_wait_for_another_lease_uncharged(
    ledger: Ledger, tmp_path: Path
) -> None:
    scene = Scene(ledger, tmp_path, batch_rows=ROWS)
    scene.run()
    scene.wait_taken(1)
    scene.engine.answer(0, most_rows=2)
    scene.wait_gone(0)
    assert scene.states() == ["split", "done", "pending"]
    assert scene.losses() == 0


@pytest.mark.parametrize(
    ("gone", "answered", "losses"),
    [
        pytest.param(EngineGone, 0, 0, id="no row is to blame"),
        pytest.param(EngineGone, 2, 0, id="no row is to blame, and some are finished"),
        pytest.param(EngineEnded, 0, 1, id="its rows ended the engine"),
        pytest.param(EngineEnded, 2, 0, id="its rows ended the engine, and some are finished"),
    ],
)
def test_an_engine_that_cannot_be_started_again_costs_its_child_and_charges_a_suspect_alone(
    ledger: Ledger, tmp_path: Path, gone: type[EngineGone], answered: int, losses: int
) -> None:
    scene = Scene(ledger, tmp_path, batch_rows=ROWS)
    scene.run()
    scene.wait_taken(1)
    scene.engine.answer(0, answered, gone("the hub is away"))
    scene.wait_gone(0)
    assert scene.states() == (["split", "done", "pending"] if answered else ["pending"])
    assert (scene.losses(), scene.died, scene.left) == (losses, [], ["the hub is away"])


def test_rows_that_ran_before_the_engine_died_are_paid(ledger: Ledger, tmp_path: Path) -> None:
    """The child ends at once, so no later beat says what it has spent."""
    scene = Scene(ledger, tmp_path, batch_rows=ROWS)
    thread = scene.run()
    scene.wait_taken(1)
    scene.engine.taken[0][0].emit(0, Answer({"loud": "ONE"}))
    scene.engine.die(0)
    thread.join(60)
    assert scene.died == [["leased"]]
    with ledger.transaction() as connection:
        found = spending.cost(connection, scene.group[0].lease.job_id)
    assert found["rows_run"] == 1
    assert found["engine_seconds"] > 0


def _at_once(engine: Scripted, order: tuple[int, int]) -> Callable[[Work], "Future[None]"]:
    """The second batch of the group makes both leave the engine, in this order."""

    def start(work: Work) -> "Future[None]":
        future = Scripted.start(engine, work)
        if len(engine.taken) == 2:
            for at in order:
                if at == 0:
                    engine.answer(0)
                else:
                    engine.die(1)
        return future

    return start


def test_a_finished_batch_is_marked_before_its_thread_comes_to_it(
    scene: Scene, read_then: Callable[[Callable[[int], None]], None]
) -> None:
    reading, read_on = threading.Event(), threading.Event()

    def hang(number: int) -> None:
        if number == 1:
            reading.set()
            read_on.wait(60)

    read_then(hang)
    thread = scene.run(scene.group[:2])
    assert reading.wait(60)
    scene.engine.answer(0)
    assert scene.group[0].publishing
    for batch in scene.group[:2]:
        batch.stop()
    read_on.set()
    thread.join(60)
    assert scene.states()[:2] == ["done", "pending"]


def test_a_stop_ends_the_reading_of_what_is_left(
    scene: Scene, read_then: Callable[[Callable[[int], None]], None]
) -> None:
    read: list[int] = []

    def stop_all(number: int) -> None:
        read.append(number)
        if number == 1:
            scene.engine.answer(0)
            for batch in scene.group:
                batch.stop()

    read_then(stop_all)
    scene.run().join(60)
    assert read == [0, 1]
    assert scene.states() == ["done", *["pending"] * (ROWS - 1)]
    assert scene.errors() == [None] * ROWS
    assert scene.is_over()


def test_a_job_that_the_engine_can_run_for_no_row_ends_at_once_and_charges_no_batch(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_work: Work) -> "Future[None]":
        raise JobRefused("vLLM takes no row of this task: no lookahead")

    monkeypatch.setattr(scene.engine, "start", refuse)
    scene.run().join(60)
    assert scene.states() == ["pending"] * ROWS
    with scene.ledger.transaction() as connection:
        job = connection.execute(text("SELECT state, reason FROM jobs")).one()
        charged = connection.scalar(text("SELECT sum(failures) FROM batches"))
    assert tuple(job) == ("failed", "vLLM takes no row of this task: no lookahead")
    assert charged == 0
    assert scene.is_over()
    assert scene.died == []


def test_a_job_of_which_an_engine_runs_no_row_gets_another_and_its_batches_wait_for_that(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(
        ledger,
        tmp_path,
        task={"kind": "generate", "prompt": "{{ text }}", "output": {"regex": "(?i)a"}},
        engine={"backend": "vllm", "model": "m"},
    )
    args = {"structured_outputs_config": {"backend": "guidance"}}

    def refuse(_work: Work) -> "Future[None]":
        raise NeedsOtherEngine("no flags in xgrammar: an engine with guidance runs the job", args)

    monkeypatch.setattr(scene.engine, "start", refuse)
    scene.run().join(60)
    assert scene.states() == ["pending"] * ROWS
    with scene.ledger.transaction() as connection:
        [job] = connection.execute(text("SELECT id, state, remark FROM jobs")).all()
        charged = connection.scalar(text("SELECT sum(failures + losses) FROM batches"))
        spec = jobs.get(connection, job.id).spec  # type: ignore[union-attr]
    assert spec.engine.args == args  # type: ignore[union-attr]
    assert (job.state, job.remark[:8], charged) == ("running", "no flags", 0)
    assert scene.is_over()
    assert scene.died == []


def test_images_that_rows_name_are_held_to_the_roots_of_the_worker(
    ledger: Ledger, tmp_path: Path
) -> None:
    parts = [{"type": "image", "column": "text"}]
    seen = Scene(
        ledger,
        tmp_path,
        roots=(str(tmp_path),),
        task={"kind": "generate", "messages": [{"role": "user", "content": parts}]},
        engine={"backend": "vllm", "model": "m"},
    )
    thread = seen.run()
    seen.wait_taken(ROWS)
    for work, future in seen.engine.taken:
        (message,) = work.requests[0].messages or ()
        (part,) = message["content"]
        assert part["image"].roots == (str(tmp_path),)
        future.cancel()
    thread.join(60)


def test_a_crash_of_the_thread_leaves_nothing_held(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(_group: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(scene.runner.publisher, "publish", crash)
    thread = scene.run()
    scene.wait_taken(ROWS)
    scene.engine.answer(0)
    thread.join(60)
    assert scene.is_over()
    assert set(scene.states()) == {"pending"}
    going_on = [work for work, future in scene.engine.taken if not future.done()]
    assert going_on == [], "rows would run for nobody"


def test_a_part_that_the_store_refuses_for_long_holds_up_no_neighbour(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []
    write = storage.write_bytes

    def fail_the_first(uri: str, data: Any, **how: Any) -> storage.Written:
        if "part-000000" in uri and len(tried) < 2:
            tried.append(scene.states())
            raise StorageUnavailable("disk full")
        return write(uri, data, **how)

    monkeypatch.setattr(storage, "write_bytes", fail_the_first)
    thread = scene.run()
    scene.wait_taken(ROWS)
    for at in range(ROWS):
        scene.engine.answer(at)
    thread.join(60)
    assert scene.states() == ["done"] * ROWS
    assert scene.parts() == ROWS
    assert tried == [["leased"] * ROWS, ["leased", *["done"] * (ROWS - 1)]]
    assert scene.is_over()


@pytest.mark.parametrize(
    ("stage", "why"),
    [
        ("read", "slow"),
        ("written", "slow"),
        ("moved", "slow"),  # committed: no lease is held any more
        ("read", "cancelled"),
        ("written", "cancelled"),
    ],
)
def test_the_batch_of_a_thread_that_hangs_is_given_back_and_its_neighbour_goes_on(
    scene: Scene, hangs_at: Hang, stage: str, why: str
) -> None:
    hangs_at.begin(stage)
    hung, neighbour = scene.run(scene.group[:1]), scene.run(scene.group[1:2])
    scene.wait_taken(1 if stage == "read" else 2)
    for at in range(len(scene.engine.taken)):
        scene.engine.answer(at)
    assert hangs_at.reached.wait(60)
    neighbour.join(60)
    heartbeat = scene.heartbeat(stage_timeout_seconds=1000 if why == "cancelled" else 0.01)
    if why == "cancelled":
        with scene.ledger.transaction() as connection:
            jobs.cancel(connection, scene.group[0].lease.job_id)
        heartbeat.beat()
        # What is finished may be written for as long as a lease.
        if stage == "written":
            assert scene.group[0] in scene.window.held()
        with scene.ledger.transaction() as connection:
            connection.execute(text("UPDATE jobs SET finished_at = now() - interval '1 hour'"))
    else:
        heartbeat.beat()
        assert scene.group[0] in scene.window.held()
        time.sleep(0.02)
    heartbeat.beat()
    scene.wait_gone(0)
    assert scene.states()[:2] == ["done" if stage == "moved" else "pending", "done"]
    assert scene.losses() == 0
    assert scene.left == scene.stalls == []

    with scene.ledger.transaction() as connection:  # somebody else claims the batch
        connection.execute(
            text("""UPDATE batches SET state = 'leased', owner = 'other', attempt = attempt + 1,
                           lease_expires_at = now() + interval '600 s', not_before = NULL
                    WHERE id = :id AND state = 'pending'"""),
            {"id": scene.group[0].lease.batch_id},
        )
    hangs_at.over.set()
    hung.join(60)
    assert not hung.is_alive()
    assert scene.states()[:2] == ["done" if stage == "moved" else "leased", "done"]
    assert scene.parts() == (2 if stage == "moved" else 1)
    assert list((scene.output / "_attempts").glob("*.parquet")) == []
    for batch in scene.group[2:]:
        scene.window.remove(batch)
    assert scene.is_over()


def test_a_batch_that_hangs_each_time_waits_ever_longer_and_others_do_not(scene: Scene) -> None:
    """It once held a thread of a child again after five seconds, for ever."""

    def pause(batch: HeldBatch) -> float:
        with scene.ledger.transaction() as connection:
            found = connection.scalar(
                text("""SELECT extract(epoch FROM b.not_before - a.ended_at)::float8
                        FROM batches b JOIN attempts a ON a.batch_id = b.id
                             AND a.attempt = b.attempt WHERE b.id = :id"""),
                {"id": batch.lease.batch_id},
            )
            connection.execute(text("UPDATE batches SET not_before = NULL"))
        return float(found)

    def give_up(batch: HeldBatch) -> None:
        was = batch.move(Move.GIVE_UP)
        assert was is not None
        scene.runner.give_back([GivenBack(batch, was, Reason.HUNG)])

    hung, *others = scene.group
    give_up(others[0])
    pauses = [pause(others[0])]
    for _ in range(3):
        give_up(hung)
        pauses.append(pause(hung))
        for lease in scene.claim():
            hung = HeldBatch(lease, 1) if lease.batch_id == hung.lease.batch_id else hung
        scene.window.add(hung)
    scene.runner.release(hung, StorageUnavailable("away"))
    pauses.append(pause(hung))
    assert pauses == [5, 5, 10, 20, 5]
    assert scene.losses() == 0


def test_a_row_that_comes_after_its_batch_was_given_back_counts_in_no_window(
    scene: Scene, hangs_at: Hang
) -> None:
    hangs_at.begin("read", row=1)
    thread = scene.run(scene.group[:2])
    scene.wait_taken(1)
    assert hangs_at.reached.wait(60)
    heartbeat = scene.heartbeat(stage_timeout_seconds=0.01)
    heartbeat.beat()
    time.sleep(0.02)
    work, future = scene.engine.taken[0]
    work.on_stop(lambda: work.emit(0, Answer({"loud": "LATE"})))
    heartbeat.beat()
    scene.wait_gone(0, 1)
    assert future.cancelled()
    for batch in scene.group[2:]:
        scene.window.remove(batch)
    assert scene.is_over()
    hangs_at.over.set()
    thread.join(60)
    assert scene.is_over()
    assert scene.losses() == 0


def test_a_batch_of_a_job_that_is_over_is_let_go_whatever_its_engine_does(scene: Scene) -> None:
    scene.engine.obeys = False
    thread = scene.run(scene.group[:1])
    scene.wait_taken(1)
    heartbeat = scene.heartbeat()
    with scene.ledger.transaction() as connection:
        jobs.cancel(connection, scene.group[0].lease.job_id)
    heartbeat.beat()
    scene.wait_gone(0)
    assert scene.states()[0] == "pending"
    scene.engine.answer(0)
    thread.join(60)
    assert scene.losses() == 0


def test_a_lease_whose_commit_is_refused_since_its_job_is_over_ends_at_once(scene: Scene) -> None:
    """Such a job once stayed open for a whole lease more."""

    def cancel() -> None:
        with scene.ledger.transaction() as connection:
            jobs.cancel(connection, scene.group[0].lease.job_id)
            job_end.take(connection, scene.group[0].lease.job_id, "a hurried reaper")

    assert scene.watch_commits(cancel) == []
    thread = scene.run(scene.group[:1])
    scene.wait_taken(1)
    scene.engine.answer(0)
    thread.join(60)
    assert scene.states() == ["pending", *["leased"] * (ROWS - 1)]
    assert scene.losses() == 0
    assert list((scene.output / "_attempts").glob("*.parquet")) == []
    with scene.ledger.transaction() as connection:
        ended = connection.execute(
            text("SELECT outcome, error FROM attempts WHERE ended_at IS NOT NULL")
        ).all()
    assert [tuple(each) for each in ended] == [("released", None)]


def test_a_template_that_is_slow_and_moves_is_left_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = scene.heartbeat(stage_timeout_seconds=0.01)
    looked: list[bool] = []
    load = Loader.load

    def slow(self: BatchRunner, batch: HeldBatch) -> LoadedBatch:
        with batch.progress.stage() as moved:
            for _ in range(4):
                time.sleep(0.02)
                moved()
                heartbeat.beat()
                looked.append(batch.state is State.OVER)
        return load(self, batch)

    monkeypatch.setattr(Loader, "load", slow)
    thread = scene.run(scene.group[:1])
    wait_until(lambda: len(looked) == 4, what="four beats")
    assert looked == [False] * 4
    scene.wait_taken(1)
    scene.engine.answer(0)
    thread.join(60)
    assert scene.states()[0] == "done"


def test_a_child_leaves_once_too_many_of_its_threads_hang(scene: Scene, hangs_at: Hang) -> None:
    heartbeat = scene.heartbeat(stage_timeout_seconds=0.01)
    threads = []
    for row, batch in enumerate(scene.group[: HUNG_THREADS + 1]):
        assert scene.left == []
        hangs_at.begin("read", row=row)
        threads.append(scene.run([batch]))
        assert hangs_at.reached.wait(60)
        heartbeat.beat()
        time.sleep(0.02)
        heartbeat.beat()
    assert scene.left == [f"{HUNG_THREADS + 1} threads hang in reading, rendering or writing"]
    assert scene.stalls == []
    scene.wait_gone(*range(len(threads)))
    assert scene.losses() == 0
    hangs_at.over.set()
    for thread in threads:
        thread.join(60)


def test_rows_whose_parts_the_store_refuses_are_paid_each_time_that_they_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = storage.write_bytes

    def refuse(uri: str, data: Any, **how: Any) -> storage.Written:
        if "/part-" in uri:
            raise StorageUnavailable("disk full")
        return write(uri, data, **how)

    monkeypatch.setattr(storage, "write_bytes", refuse)
    publisher = scene.runner.publisher
    publisher._for_store = scene.patient.retrying(StorageUnavailable, 0)
    thread = scene.run()
    scene.wait_taken(ROWS)
    for at in range(ROWS):
        scene.engine.answer(at)
    thread.join(60)
    assert scene.states() == ["pending"] * ROWS
    with scene.ledger.transaction() as connection:
        found = spending.cost(connection, scene.group[0].lease.job_id)
    assert found["rows_run"] == ROWS
    assert found["engine_seconds"] > 0


def test_no_row_is_computed_for_an_output_that_cannot_be_written(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str, _data: Any, **how: Any) -> storage.Written:
        raise StorageUnavailable(f"{uri} cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_bytes", refuse)
        scene.run().join(60)
    assert scene.engine.taken == []
    assert scene.states() == ["pending"] * ROWS
    assert all("No space left" in (error or "") for error in scene.errors())
    assert scene.is_over()


def test_nothing_is_written_to_a_directory_that_belongs_to_somebody_else_by_now(
    scene: Scene,
) -> None:
    """A link in place of the directory once had a part of another job written over."""
    others = scene.output.with_name("others")
    (others / "_attempts").mkdir(parents=True)
    files = {"_owner.json": b'{"ledger": "a", "identity": "b"}'}
    files |= {
        f"_attempts/part-{seq:06d}-b{seq + 1}-a1.parquet": b"of another job" for seq in range(ROWS)
    }
    for name, content in files.items():
        (others / name).write_bytes(content)
    scene.output.rename(scene.output.with_name("own"))
    scene.output.symlink_to(others)
    thread = scene.run()
    wait_until(lambda: len(scene.engine.taken) == ROWS or not thread.is_alive(), what="the batches")
    for at in range(len(scene.engine.taken)):
        scene.engine.answer(at)
    thread.join(60)
    assert {name: (others / name).read_bytes() for name in files} == files
    assert len([path for path in others.rglob("*") if path.is_file()]) == len(files)
    assert scene.engine.taken == []
    assert scene.states() == ["pending"] * ROWS
    assert scene.losses() == 0
    assert all("belongs to another job or ledger by now" in (e or "") for e in scene.errors())
    assert scene.is_over()


def test_a_directory_that_is_replaced_by_somebody_elses_while_rows_run_takes_no_part(
    scene: Scene,
) -> None:
    """A proof of the output once held for a minute, whatever stood under its name by then."""
    others = scene.output.with_name("others")
    others.mkdir()
    (others / "_owner.json").write_bytes(b'{"ledger": "a", "identity": "b"}')
    thread = scene.run()
    scene.wait_taken(ROWS)
    scene.output.rename(scene.output.with_name("own"))
    scene.output.symlink_to(others)
    for at in range(ROWS):
        scene.engine.answer(at)
    thread.join(60)
    assert [path.name for path in others.rglob("*")] == ["_owner.json"]
    assert scene.states() == ["pending"] * ROWS
    assert all("belongs to another job or ledger by now" in (e or "") for e in scene.errors())
    assert scene.is_over()


@pytest.mark.parametrize("why", ["Permission denied", "belongs to another job or ledger by now"])
def test_a_job_whose_output_is_never_writable_is_paused_with_the_reason(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its batches once went back every five seconds for ever, or were dead."""

    def refuse(uri: str, _data: Any, **how: Any) -> storage.Written:
        raise StorageUnavailable(f"{uri} cannot be written: Permission denied")

    if why == "Permission denied":
        monkeypatch.setattr(storage, "write_bytes", refuse)
    else:
        (scene.output / "_owner.json").write_bytes(b'{"ledger": "a", "identity": "b"}')
    now = 0.0
    scene.runner.outputs.clock = lambda: now
    found = []
    for batch in scene.group[: MOST_REFUSALS + 1]:
        scene.run([batch]).join(60)
        now += UNPROVED_SECONDS / MOST_REFUSALS
        with scene.ledger.transaction() as connection:
            found.append(connection.execute(text("SELECT state, reason FROM jobs")).one())
    assert [state for state, _ in found] == ["running"] * MOST_REFUSALS + ["paused"]
    assert why in found[-1].reason
    assert "repair the output directory, then resume the job" in found[-1].reason
    assert scene.engine.taken == []
    assert scene.states()[: MOST_REFUSALS + 1] == ["pending"] * (MOST_REFUSALS + 1)
    assert scene.losses() == 0


def test_a_job_whose_parts_are_refused_again_and_again_is_paused_with_the_reason(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "WRITE_RETRY_SECONDS", 0)
    scene = Scene(ledger, tmp_path)
    write, found = storage.write_bytes, []

    def refuse(uri: str, data: Any, **how: Any) -> storage.Written:
        if "/part-" in uri:
            raise StorageUnavailable(f"{uri} cannot be written: No space left on device")
        return write(uri, data, **how)

    monkeypatch.setattr(storage, "write_bytes", refuse)
    for at, claimed in enumerate(scene.group[:MOST_REFUSALS]):
        batch = HeldBatch(claimed.lease, 1)
        scene.window.add(batch)
        thread = scene.run([batch])
        scene.wait_taken(at + 1)
        scene.engine.answer(at)
        thread.join(60)
        with ledger.transaction() as connection:
            found.append(connection.execute(text("SELECT state, reason FROM jobs")).one())
    scene.patient.given_up.set()
    assert [state for state, _ in found] == ["running", "running", "paused"]
    assert "refuses parts again and again" in found[-1].reason
    assert "No space left on device; repair the output directory" in found[-1].reason
    assert scene.states() == ["pending"] * MOST_REFUSALS + ["leased"] * (ROWS - MOST_REFUSALS)


def test_nothing_is_committed_before_its_directory_is_synced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, failing = local.synced, iter([True])

    def fail_once(path: Path, wishes: Sequence[None]) -> Any:
        if path.name == "_attempts" and next(failing, False):
            happened.append("failed")
            raise OSError("the disk is away")
        happened.append(f"synced {path.name}")
        return sync(path, wishes)

    scene.watch_commits(lambda: happened.append("committed"))
    thread = scene.run(scene.group[:1])
    scene.wait_taken(1)
    monkeypatch.setattr(local, "synced", fail_once)
    local.syncs_of.cache_clear()
    scene.engine.answer(0)
    thread.join(60)
    local.syncs_of.cache_clear()
    assert scene.states()[0] == "done"
    tail = happened[happened.index("failed") :]
    assert tail.index("synced _attempts") < tail.index("committed")


@pytest.mark.parametrize("error", [EngineUnavailable, EngineRefused, StorageUnavailable])
def test_a_server_that_serves_nobody_charges_nothing_and_keeps_what_it_answered(
    ledger: Ledger, tmp_path: Path, error: type[Exception]
) -> None:
    scene = Scene(ledger, tmp_path, batch_rows=3)
    thread = scene.run()
    scene.wait_taken(2)
    work, future = scene.engine.taken[0]
    work.emit(1, Answer({"loud": "PAID FOR"}))
    future.set_exception(error("the server is away"))
    scene.engine.taken[1][1].set_exception(error("the server is away"))
    thread.join(60)
    assert scene.is_over()
    assert scene.died == []
    with ledger.transaction() as connection:
        batches = connection.execute(
            text("SELECT state, row_count, failures, losses, last_error FROM batches ORDER BY id")
        ).all()
        state, reason = connection.execute(text("SELECT state, reason FROM jobs")).one()
    first, second, *children = [tuple(batch) for batch in batches]
    assert first[0] == "split"
    assert second == ("pending", 3, 0, 0, "the server is away")
    assert sorted(each[:4] for each in children) == [("done", 1, 0, 0), ("pending", 2, 0, 0)]
    if error is EngineRefused:
        assert (state, reason) == ("paused", "the server is away")
    else:
        assert state == "running"
