"""Loaded batches in the engine: which of their rows run when, and what becomes of each outcome."""

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from operator import attrgetter

import pyarrow as pa

from nightshift.common.failpoints import Moment, reached
from nightshift.common.states import RowErrorKind
from nightshift.worker.child_context import ChildContext
from nightshift.worker.engines.protocol import USAGE_FIELDS, Answer, Outcome, Refusal, Request, Work
from nightshift.worker.held_batch import HeldBatch, Move
from nightshift.worker.job_cache import KnownJob
from nightshift.worker.rows.results import RowResults
from nightshift.worker.rows.sharing import Answers, Rounds, keys

TOKENS = tuple(map(attrgetter, USAGE_FIELDS))
"""Each count of tokens that an outcome has; no object is made for each row of a batch."""


@dataclasses.dataclass(slots=True, eq=False)
class LoadedBatch:
    """A batch that was read: its requests, the outcomes of its rows so far, and for a function the
    rows of the requests. `rounds` say which rows run when, where rows may share answers.
    """

    batch: HeldBatch
    job: KnownJob
    results: RowResults
    requests: list[Request]
    rows: pa.Table | None
    rounds: Rounds | None = None
    _taking: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _closed: bool = False

    def take(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> bool:
        """Keeps the outcomes of requests; False when they come too late."""
        with self._taking:
            if not self._closed:
                rows = (self.requests[position].row_index for position in positions)
                self.results.outcomes.update(zip(rows, outcomes, strict=True))
                answers = sum(isinstance(each, Answer) for each in outcomes)
                self.batch.rows_done += answers
                self.batch.rows_failed += len(outcomes) - answers
            return not self._closed

    def close(self) -> None:
        """Takes no more outcomes: after a stop the engine may still finish a row while the part is
        being written.
        """
        with self._taking:
            self._closed = True


@dataclasses.dataclass(eq=False)
class Inference:
    """Hands batches to the engine of a child. For many threads at once."""

    child: ChildContext
    _answers: Answers = dataclasses.field(default_factory=Answers)

    def start(self, loaded: LoadedBatch) -> "Future[None]":
        """Hands a batch to the engine; of rows with equal requests, where they share answers, one."""
        batch = loaded.batch
        if batch.lease.isolated:
            dead = Refusal(
                RowErrorKind.ENGINE_DIED, "the engine died each time it ran this row alone"
            )
            self._emit(loaded, range(len(loaded.requests)), [dead] * len(loaded.requests))
        if batch.lease.isolated or not batch.runs:
            return _nothing()
        loaded.rounds = self._rounds(loaded)
        if loaded.rounds is None:
            return self._run(loaded, range(len(loaded.requests)))
        runs = loaded.rounds.next()
        # Rows whose answer is known, and those that wait for one, leave the engine to others.
        self.child.window.set_aside(batch, len(loaded.requests) - len(runs))
        rounds = loaded.rounds
        try:
            future = self._run(loaded, runs)
        except BaseException:
            rounds.end()
            raise
        future.add_done_callback(lambda _: rounds.end())
        return future

    def goes_on(self, loaded: LoadedBatch, future: "Future[None]") -> "Future[None] | None":
        """Runs the rows of a batch that waited for another row in vain, once the batch has left the
        engine without them; None where there are none.
        """
        batch, rounds = loaded.batch, loaded.rounds
        if rounds is None or future.cancelled() or future.exception() is not None:
            return None
        if not rounds.over() or batch.move(Move.AGAIN) is None:
            return None
        runs = rounds.next()
        self.child.window.take_back(batch, len(runs))
        return self._run(loaded, runs)

    def _rounds(self, loaded: LoadedBatch) -> Rounds | None:
        """Return the rounds of a batch whose rows share answers; None if every row is requested by itself, as in a
        retry.
        """
        job, lease = loaded.job, loaded.batch.lease
        if lease.redo is not None or not job.spec.task.shares:
            return None

        def take(position: int, answer: Answer) -> None:
            if loaded.take([position], [answer]):
                self.child.window.spending.share(job.id)
                reached(Moment.ANSWERED)

        found = keys(job.id, job.spec, loaded.requests, loaded.rows)
        return Rounds(found, [each.row_index for each in loaded.requests], self._answers, take)

    def _run(self, loaded: LoadedBatch, positions: Sequence[int]) -> "Future[None]":
        """Hands the requests at these positions to the engine."""
        if not positions:
            return _nothing()
        job, requests, rows = loaded.job, loaded.requests, loaded.rows
        if len(positions) < len(requests):
            requests = [requests[position] for position in positions]
            rows = None if rows is None else rows.take(pa.array(positions))

        def emit(at: int, outcome: Outcome) -> None:
            self._emit(loaded, [positions[at]], [outcome])

        def emit_many(at: Sequence[int], outcomes: Sequence[Outcome]) -> None:
            self._emit(loaded, [positions[each] for each in at], outcomes)

        work = Work(
            job.spec.task,
            requests,
            job.spec.retry.row_timeout_seconds,
            emit,
            self.child.recorder,
            rows,
            job.resolved,
            emit_many=emit_many,
            spend=lambda usage: self.child.window.spending.run(
                job.id, 0, *(tokens(usage) for tokens in TOKENS)
            ),
        )
        loaded.batch.attach(work)
        return self.child.engine.start(work)

    def _emit(
        self, loaded: LoadedBatch, positions: Sequence[int], outcomes: Sequence[Outcome]
    ) -> None:
        self.child.window.spending.run(
            loaded.job.id,
            len(outcomes),
            *(sum(map(tokens, outcomes)) for tokens in TOKENS),
        )
        if loaded.take(positions, outcomes):
            self.child.window.row_finished(loaded.batch, len(outcomes))
            for _ in outcomes:
                reached(Moment.ANSWERED)
        if loaded.rounds is not None:
            for position, outcome in zip(positions, outcomes, strict=True):
                loaded.rounds.ran(position, outcome)


def _nothing() -> "Future[None]":
    """The future of no rows at all."""
    nothing: Future[None] = Future()
    nothing.set_result(None)
    return nothing
