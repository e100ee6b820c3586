"""From finished rows to a part that Postgres names: write, commit, read back, move."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

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
        self._commits: dict[int, Grouped[Finished, bool | Exception]] = {}
        self._making = threading.Lock()
        # Made once: they keep what they count in each thread by itself.
        self._for_ledger = self._patience(LedgerUnavailable)
        self._for_commit = self._patience(Retryable)
        self._for_store = self._patience(StorageUnavailable, WRITE_RETRY_SECONDS)

    def publish(
        self,
        lease: Lease,
        spec: JobSpec,
        table: PartTable,
        provenance: dict[str, str],
        finished: RowRanges | None = None,
        *,
        bare: bool = False,
    ) -> None:
        """One part for the batch, named by the ledger, moved to its place.

        `bare` says that the job's columns are not known yet. With `finished` only those rows are
        kept and the rest is split off. Raises LeaseLost when the batch belongs to somebody else,
        StorageUnavailable or LedgerUnavailable when it was given up.
        """
        with self._profile.span(Stage.WRITE):
            part = self._write(lease, spec, table, provenance, bare)
        reached(Moment.WRITTEN)
        try:
            with self._profile.span(Stage.COMMIT):
                if finished is None:
                    self._for_commit(self._commit, lease, part)
                else:
                    self._for_commit(self._split, lease, part, finished)
        except LeaseLost:
            self._discard(spec, part)
            raise
        reached(Moment.COMMITTED)
        with self._profile.span(Stage.SETTLE):
            self._settle(lease, spec, part, judge=bool(part.errors))

    def _write(
        self,
        lease: Lease,
        spec: JobSpec,
        table: PartTable,
        provenance: dict[str, str],
        bare: bool,
    ) -> Part:
        name = part_name(
            lease.seq,
            None if lease.is_root else lease.batch_id,
            lease.attempt,
            spec.output.format,
            bare=bare,
        )
        data = formats.encode_part(table.table, spec.output.format, provenance)
        facts = self._for_store(
            formats.write_encoded, staged(spec.output.uri, name), data, len(table.table)
        )
        return Part(
            name,
            facts.bytes,
            facts.checksum,
            table.prompt_tokens,
            table.output_tokens,
            table.errors,
        )

    def _commit(self, lease: Lease, part: Part) -> None:
        """Fenced; in one transaction with what other threads commit at this moment."""
        answer = self._commits_of(lease.job_id).ask((lease, part))
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            self._read_back(lease)

    def _commits_of(self, job_id: int) -> Grouped[Finished, bool | Exception]:
        """Each job has its own: whoever holds one's row for long stops no other's commits."""
        with self._making:
            if job_id not in self._commits:
                self._commits[job_id] = Grouped(self._commit_all, GROUP_BATCHES)
            return self._commits[job_id]

    def _commit_all(self, finished: Sequence[Finished]) -> Sequence[bool | Exception]:
        """In as many transactions as their errors need; after an outage in a later one, those of
        the earlier ones are read back.
        """
        return [answer for group in _groups(finished) for answer in self._commit_group(group)]

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

    def _split(self, lease: Lease, part: Part, finished: RowRanges) -> None:
        try:
            with self._ledger.transaction() as connection:
                batches.split(connection, lease, finished, part)
                reached(Moment.COMMITTING)
        except LeaseLost:
            self._read_back(lease)

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

    def _settle(self, lease: Lease, spec: JobSpec, part: Part, *, judge: bool) -> None:
        """What follows a commit and can be done by finish as well, should this child die here."""
        try:
            storage.move(staged(spec.output.uri, part.name), final(spec.output.uri, part.name))
            reached(Moment.MOVED)
            if lease.kept_part is not None:
                storage.delete(final(spec.output.uri, lease.kept_part))
            if judge:
                with self._ledger.transaction() as connection:
                    paused = jobs.judge_failures(connection, lease.job_id)
                if paused:
                    log.warning("job_paused", job_id=lease.job_id, why="too many rows failed")
        except (NightshiftError, FileNotFoundError) as error:
            log.warning("settle_failed", batch_id=lease.batch_id, error=str(error))

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


def _groups(finished: Sequence[Finished]) -> Iterator[list[Finished]]:
    """In their order, with at most ERRORS_A_COMMIT in each that has more than one."""
    group: list[Finished] = []
    errors = 0
    for lease, part in finished:
        if group and errors + len(part.errors) > ERRORS_A_COMMIT:
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
