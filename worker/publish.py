"""From finished rows to a part that Postgres names: write, commit, read back, move."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import pyarrow as pa
import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from common import formats, storage
from common.descriptor import RowRanges
from common.errors import (
    LeaseLost,
    LedgerUnavailable,
    NightshiftError,
    Retryable,
    StorageUnavailable,
)
from common.faultpoints import Moment, reached
from common.grouped import Grouped
from common.ledger import Ledger, batches, jobs
from common.ledger.batches import Lease, Part
from common.parts import final, part_name, staged
from common.spec import JobSpec
from worker.profile import NO_PROFILE, Profile, Stage
from worker.results import PartTable

log = structlog.get_logger(__name__)

T = TypeVar("T")

Finished = tuple[Lease, Part]

GROUP_BATCHES = 32
"""Batches in one commit at most, so that its transaction stays short."""

ERRORS_A_COMMIT = 5_000
"""Rows' errors in one commit, about: its batches are locked until they are written, and the
heartbeat that renews their leases waits no longer than LOCK_SECONDS for them. A batch that alone
has more is committed alone."""

WRITE_RETRY_SECONDS = 60.0
"""How long a part is tried again on a failing store before its batch is given back."""


@dataclass(frozen=True, slots=True)
class Made:
    """A batch whose rows are finished.

    `bare` says that the job's columns are not known yet. With `finished` only those rows are kept
    and the rest is split off.
    """

    lease: Lease
    spec: JobSpec
    table: PartTable
    provenance: dict[str, str]
    finished: RowRanges | None = None
    bare: bool = False


@dataclass(slots=True)
class _Going:
    """A batch on its way to its commit, and what became of it."""

    made: Made
    data: pa.Buffer | None = None
    part: Part | None = None
    committed: bool = False
    error: BaseException | None = None

    @contextmanager
    def keeping_errors(self, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """What goes wrong with this batch is its own outcome and stops no other."""
        try:
            yield
        except but:
            raise
        except Exception as error:
            self.error = error

    @property
    def finished(self) -> Finished:
        assert self.part is not None
        return self.made.lease, self.part


class Publisher:
    """Writes and commits the batches of one child.

    Once `given_up` is set, an unreachable ledger or store is not waited for any longer.
    """

    def __init__(
        self, ledger: Ledger, given_up: threading.Event, profile: Profile = NO_PROFILE
    ) -> None:
        self._ledger = ledger
        self._profile = profile
        self._given_up = given_up
        self._commits: dict[int, Grouped[list[Finished], list[bool | Exception]]] = {}
        self._making = threading.Lock()
        # Made once: they keep what they count in each thread by itself.
        self._for_ledger = self._patience(LedgerUnavailable)
        self._for_commit = self._patience(Retryable)
        self._for_store = self._patience(StorageUnavailable, WRITE_RETRY_SECONDS)

    def publish(self, made: Sequence[Made]) -> list[BaseException | None]:
        """A part for each batch, named by the ledger, moved to its place; all are of one job.

        Each batch has its own outcome: None once it is committed, else why it is not. LeaseLost
        says that it belongs to somebody else, StorageUnavailable or LedgerUnavailable that it was
        given up.
        """
        going = [_Going(each) for each in made]
        with self._profile.span(Stage.WRITE) as span:
            self._write(going)
            span.count = len(_open(going))
        for _ in _open(going):
            reached(Moment.WRITTEN)
        with self._profile.span(Stage.COMMIT) as span:
            self._commit(going)
            span.count = len(_open(going))
        for each in going:
            if each.part is not None and isinstance(each.error, LeaseLost):
                self._discard(each.made.spec, each.part)
        for _ in _open(going):
            reached(Moment.COMMITTED)
        with self._profile.span(Stage.SETTLE) as span:
            self._settle(_open(going))
            span.count = len(_open(going))
        return [each.error for each in going]

    def _write(self, going: Sequence["_Going"]) -> None:
        for each in going:
            with each.keeping_errors():
                made = each.made
                each.data = formats.encode_part(
                    made.table.table, made.spec.output.format, made.provenance
                )
        try:
            self._for_store(self._store, _open(going))
        except StorageUnavailable as error:
            for each in _open(going):
                each.error = None if each.part else error

    def _store(self, going: Sequence["_Going"]) -> None:
        """Writes what is not written yet; raises for those that are to be tried again."""
        written, failed = [], None
        try:
            with storage.gathered_syncs():
                for each in going:
                    if each.part is None and each.error is None:
                        try:
                            with each.keeping_errors(but=StorageUnavailable):
                                each.part = _stored(each.made, each.data)
                                written.append(each)
                        except StorageUnavailable as error:
                            failed = error
        except StorageUnavailable:
            for each in written:
                each.part = None
            raise
        if failed is not None:
            raise failed

    def _commit(self, going: Sequence["_Going"]) -> None:
        """Fenced one by one; in one transaction with what other threads commit at this moment."""
        whole = [each for each in _open(going) if each.made.finished is None]
        try:
            self._for_commit(self._commit_whole, whole)
        except Exception as error:
            for each in whole:
                each.error = each.error or (None if each.committed else error)
        for each in _open(going):
            if not each.committed:
                with each.keeping_errors():
                    self._for_commit(self._split, each)

    def _commit_whole(self, going: Sequence["_Going"]) -> None:
        asking = [each for each in going if each.error is None and not each.committed]
        if not asking:
            return
        job_id = asking[0].made.lease.job_id
        answers = self._commits_of(job_id).ask([each.finished for each in asking])
        for each, answer in zip(asking, answers, strict=True):
            with each.keeping_errors(but=Retryable):
                if isinstance(answer, Exception):
                    raise answer
                if not answer:
                    self._read_back(each.made.lease)
                each.committed = True

    def _commits_of(self, job_id: int) -> Grouped[list[Finished], list[bool | Exception]]:
        """Each job has its own: whoever holds one's row for long stops no other's commits."""
        with self._making:
            if job_id not in self._commits:
                self._commits[job_id] = Grouped(self._commit_all, GROUP_BATCHES)
            return self._commits[job_id]

    def _commit_all(self, wishes: Sequence[list[Finished]]) -> list[list[bool | Exception]]:
        """In as many transactions as they need; after an outage in a later one, those of the
        earlier ones are read back.
        """
        finished = [each for wish in wishes for each in wish]
        answers = iter(
            [answer for group in _groups(finished) for answer in self._commit_group(group)]
        )
        return [list(islice(answers, len(wish))) for wish in wishes]

    def _commit_group(self, group: Sequence[Finished]) -> Sequence[bool | Exception]:
        try:
            with self._ledger.transaction() as connection:
                held = batches.commit_group(connection, group)
                if held:  # else there is nothing that its COMMIT would do
                    reached(Moment.COMMITTING)
        except Retryable:
            raise
        except Exception as error:
            if len(group) == 1:
                return [error]
            # What is wrong with one batch must not fail the others.
            return [self._commit_group([each])[0] for each in group]
        return [(lease.batch_id, lease.attempt) in held for lease, _ in group]

    def _split(self, each: "_Going") -> None:
        lease, finished = each.made.lease, each.made.finished
        assert finished is not None
        assert each.part is not None
        try:
            with self._ledger.transaction() as connection:
                batches.split(connection, lease, finished, each.part)
                reached(Moment.COMMITTING)
        except LeaseLost:
            self._read_back(lease)
        each.committed = True

    def _read_back(self, lease: Lease) -> None:
        """A fence that does not match may be our own earlier COMMIT; else it is LeaseLost."""
        with self._ledger.transaction() as connection:
            if not batches.is_committed(connection, lease):
                raise LeaseLost(
                    f"batch {lease.batch_id} attempt {lease.attempt} belongs to somebody else"
                )

    def _discard(self, spec: JobSpec, part: Part) -> None:
        """Removes the part of an attempt that was read back as ended without one: nobody else
        writes under its name, and nobody sweeps any more once the job is closed.
        """
        try:
            storage.delete(staged(spec.output.uri, part.name))
        except NightshiftError as error:
            log.warning("discard_failed", part=part.name, error=str(error))

    def _settle(self, going: Sequence["_Going"]) -> None:
        """What follows a commit and can be done by finish as well, should this child die here."""
        try:
            with storage.gathered_syncs():
                for each in going:
                    self._move(each)
            if any(each.made.table.errors for each in going):
                self._judge(going[0].made.lease.job_id)
        except NightshiftError as error:
            log.warning("settle_failed", error=str(error))

    def _move(self, each: "_Going") -> None:
        assert each.part is not None
        lease, uri, name = each.made.lease, each.made.spec.output.uri, each.part.name
        try:
            storage.move(staged(uri, name), final(uri, name))
            reached(Moment.MOVED)
            if lease.kept_part is not None:
                storage.delete(final(uri, lease.kept_part))
        except (NightshiftError, FileNotFoundError) as error:
            log.warning("settle_failed", batch_id=lease.batch_id, error=str(error))

    def _judge(self, job_id: int) -> None:
        with self._ledger.transaction() as connection:
            paused = jobs.judge_failures(connection, job_id)
        if paused:
            log.warning("job_paused", job_id=job_id, why="too many rows failed")

    def patiently(self, ask: Callable[[], T]) -> T:
        """Asks the ledger until it answers or is given up; finished work waits for it."""
        return self._for_ledger(ask)

    def _patience(self, kind: type[Exception], seconds: float = math.inf) -> Retrying:
        return Retrying(
            retry=retry_if_exception_type(kind),
            wait=wait_random_exponential(multiplier=0.2, max=3),
            stop=stop_when_event_set(self._given_up) | stop_after_delay(seconds),
            before_sleep=_say_waiting,
            reraise=True,
        )


def _open(going: Iterable[_Going]) -> list[_Going]:
    """Those with which nothing went wrong so far."""
    return [each for each in going if each.error is None]


def _stored(made: Made, data: pa.Buffer | None) -> Part:
    lease, output, table = made.lease, made.spec.output, made.table
    name = part_name(
        lease.seq,
        None if lease.is_root else lease.batch_id,
        lease.attempt,
        output.format,
        bare=made.bare,
    )
    facts = formats.write_encoded(staged(output.uri, name), data, len(table.table))
    return Part(
        name,
        facts.bytes,
        facts.checksum,
        table.prompt_tokens,
        table.output_tokens,
        table.errors,
    )


def _groups(finished: Sequence[Finished]) -> Iterator[list[Finished]]:
    """In their order, with at most GROUP_BATCHES in each, and with at most ERRORS_A_COMMIT in
    each that has more than one.
    """
    group: list[Finished] = []
    errors = 0
    for lease, part in finished:
        full = len(group) == GROUP_BATCHES or errors + len(part.errors) > ERRORS_A_COMMIT
        if group and full:
            yield group
            group, errors = [], 0
        group.append((lease, part))
        errors += len(part.errors)
    yield group


def _say_waiting(state: RetryCallState) -> None:
    """At the first try, the second, the fourth, ...: many batches wait at once, and for long."""
    tries = state.attempt_number
    if tries & (tries - 1) == 0 and state.outcome is not None:
        log.warning("waiting", tries=tries, error=str(state.outcome.exception()))
