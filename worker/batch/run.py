"""What is done with a group of batches: load -> infer -> finished -> publish, each in a file of its own."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue

from nightshift.common.errors import (
    BadInput,
    StageHung,
    StorageUnavailable,
)
from nightshift.common.public_text import marked
from nightshift.worker.batch.finished import Finished
from nightshift.worker.batch.inference import Inference, LoadedBatch
from nightshift.worker.batch.load import Loader
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import GivenBack, HeldBatch, Move, Progress
from nightshift.worker.job_cache import JobCache
from nightshift.worker.outcomes import BatchOutcomes
from nightshift.worker.outputs import Outputs
from nightshift.worker.publish.publication import Publication
from nightshift.worker.publish.publish import Publisher

GATHER_SECONDS = 0.25
"""How long small batches, and the threads that run them, wait for each other: batches that finish
within this time are committed together, and threads do not fight for Python's lock."""


LeftEngine = tuple[LoadedBatch, "Future[None]"]
"""A batch that left the engine, and how."""


@dataclasses.dataclass(eq=False)
class BatchRunner:
    """Runs groups of leased batches up to their commits. For many threads at once."""

    child: ChildContext

    def __post_init__(self) -> None:
        self._jobs = JobCache(self.child.ledger, self.child.settings.allowed_roots)
        self.publisher = Publisher(self.child)
        self._outcomes = BatchOutcomes(self.child, self._jobs)
        self.outputs = Outputs()
        self._loader = Loader(self.child, self._jobs, self.outputs)
        self._inference = Inference(self.child)
        self._finished = Finished(self.child, self._jobs, self._outcomes)
        self._turns = threading.RLock()

    def run(self, group: Sequence[HeldBatch]) -> None:
        """Runs batches of one job from their leases to their commits.

        The batches are read one after the other and run in the engine at once. Those that have
        left the engine when a commit begins are committed together.
        """
        progress = Progress()
        for batch in group:
            batch.progress = progress
        try:
            self._run(group)
        except BaseException as error:
            # Without this the batches would stay held by no thread, and rows would run for nobody.
            for batch in group:
                batch.drop_rows()
                self._outcomes.end(batch, error)

    def release(self, batch: HeldBatch, error: Exception) -> None:
        """Releases a batch that cannot run here: a sibling may take it."""
        self._outcomes.end(batch, StorageUnavailable(marked(error)))

    def release_unbegun(self, batch: HeldBatch) -> None:
        """Releases a batch in place of its thread: no row of the batch has begun."""
        self._outcomes.end(batch, None)

    def give_back(self, given: Sequence[GivenBack]) -> None:
        """Releases batches that the heartbeat has ended in place of their thread.

        If the thread goes on later, it ends none of them a second time. A part that the thread
        commits then counts only if no worker has claimed the batch in between.
        """
        seconds = self.child.settings.stage_timeout_seconds
        hung = StageHung(f"no row or file was read, rendered or written for {seconds:g} s")
        for each in given:
            self._outcomes.give_back(each, hung)

    def _run(self, group: Sequence[HeldBatch]) -> None:
        finished: SimpleQueue[LeftEngine] = SimpleQueue()
        many = len(group) > 1
        running, waited_since = 0, time.monotonic()
        with self._turn(many):
            for batch in group:
                running += self._start(batch, finished)
                # A slow read delays the commit of a finished neighbour by no more than this.
                if not finished.empty() and time.monotonic() - waited_since > GATHER_SECONDS:
                    running -= self._publish(finished.get(), finished)
                    waited_since = time.monotonic()
        while running:
            first = finished.get()
            with self._turn(many):
                running -= self._publish(first, finished)

    @contextmanager
    def _turn(self, many: bool) -> Iterator[None]:
        """Threads with many small batches take turns. Otherwise they would fight for Python's lock over each
        file. A thread that waits too long for its turn runs beside the others.
        """
        acquired = many and self._turns.acquire(timeout=GATHER_SECONDS)
        try:
            yield
        finally:
            if acquired:
                self._turns.release()

    def _start(self, batch: HeldBatch, finished: "SimpleQueue[LeftEngine]") -> bool:
        """Reads a batch and hands it to the engine, which puts it into `finished`; False when the
        batch has ended already.
        """
        if not batch.runs:
            self._outcomes.end(batch, None)
            return False
        try:
            loaded = self._loader.load(batch)
            future = self._inference.start(loaded)
        except BaseException as error:
            self._outcomes.end(batch, error)
            return False
        self._started(loaded, future, finished)
        return True

    def _started(
        self, loaded: LoadedBatch, future: "Future[None]", finished: "SimpleQueue[LeftEngine]"
    ) -> None:
        """The batch goes into `finished` once it leaves the engine."""

        def left_engine(future: "Future[None]") -> None:
            # A child whose engine dies now still waits for the commit of what is finished.
            if not future.cancelled() and future.exception() is None:
                loaded.batch.move(Move.LEAVE)
            finished.put((loaded, future))

        future.add_done_callback(left_engine)

    def _publish(self, first: LeftEngine, finished: "SimpleQueue[LeftEngine]") -> int:
        """Publishes a batch that left the engine, with all that have left by now; their number."""
        group = [first]
        while not finished.empty():
            group.append(finished.get())
        ready: list[Publication] = []
        unpublished: list[tuple[HeldBatch, BaseException | None]] = []
        went_on = 0
        for loaded, future in group:
            publication, failure = None, None
            try:
                again = self._inference.goes_on(loaded, future)
                if again is not None:
                    self._started(loaded, again, finished)
                    went_on += 1
                    continue
                publication = self._finished.publication(loaded, future)
            except BaseException as error:
                failure = error
            if publication is None:
                unpublished.append((loaded.batch, failure))
            else:
                ready.append(publication)
        if ready and self._is_own_output(ready):
            self.publisher.publish(ready)
        for each in ready:
            self._note_output(each)
            self._outcomes.end(each.batch, each.error, committed=each.committed)
        # Last, since a dead engine ends the child here: what was finished is committed before.
        for batch, failure in unpublished:
            self._outcomes.end(batch, failure)
        return len(group) - went_on

    def _is_own_output(self, ready: Sequence[Publication]) -> bool:
        """False where the output directory is another one by now that is somebody else's: no part is
        written, and each has that error.
        """
        job = self._jobs.get(ready[0].lease.job_id)
        try:
            with ready[0].batch.progress.stage():
                self.outputs.refuse_replaced(job.id, job.spec.output.uri, job.owner)
        except (BadInput, StorageUnavailable) as error:
            for each in ready:
                each.error = error
            return False
        return True

    def _note_output(self, each: Publication) -> None:
        """What the output did with a part. A job whose parts are refused again and again is paused:
        its rows would be computed for nothing each time.
        """
        job_id = each.lease.job_id
        if each.part is not None:
            self.outputs.took(job_id)
        elif isinstance(each.error, StorageUnavailable):
            each.error = self.outputs.refused(job_id, each.error, each.batch.claimed_at)
