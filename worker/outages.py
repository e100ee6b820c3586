"""How a child waits for a ledger or a store that is away: finished work outlives an outage."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import tenacity

from nightshift.common.errors import (
    EngineUnavailable,
    LedgerUnavailable,
    OutputRefused,
    StorageUnavailable,
)
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.fleet.workers import Child
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.telemetry.waits import Waits

WAIT_HOLD_SECONDS = 75.0
"""An output is proved again within 60 s of a proof that failed (`outputs`), other outages sooner."""

TELL_AGAIN_SECONDS = 15.0
"""What is told lapses after outages.LAPSE_SECONDS."""

P = ParamSpec("P")
T = TypeVar("T")


class PatientLedger:
    """The ledger of a child's batches. What is tried again ends once `given_up` is set."""

    def __init__(self, ledger: Ledger, recorder: Recorder) -> None:
        self.transaction = ledger.transaction
        self.given_up = threading.Event()
        self.recorder = recorder
        self._until_answered = self.retrying(LedgerUnavailable)

    def transact(
        self,
        statement: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """One statement in a transaction of its own, tried again until the ledger answers."""

        def once() -> T:
            with self.transaction() as connection:
                return statement(connection, *args, **kwargs)

        return self._until_answered(once)

    def retrying(self, kind: type[Exception], seconds: float = math.inf) -> tenacity.Retrying:
        """Tries again after each error of this kind, for so long.

        Make it once and share it between threads: it counts for each thread apart.
        """
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(kind),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=3),
            stop=tenacity.stop_when_event_set(self.given_up) | tenacity.stop_after_delay(seconds),
            before_sleep=self._tell_wait,
            reraise=True,
        )

    def _tell_wait(self, state: tenacity.RetryCallState) -> None:
        """Tells of the first try, the second, the fourth and so on: many batches wait for long."""
        tries = state.attempt_number
        if tries & (tries - 1) == 0 and state.outcome is not None:
            self.recorder.problem("waiting", tries=tries, error=str(state.outcome.exception()))


@dataclass(eq=False)
class TellsWaits:
    """Tells the ledger what a child waits for: at once when a wait begins to last or ends, and again
    every TELL_AGAIN_SECONDS. For the thread of the heartbeat. Raises Retryable.
    """

    child: Child
    ledger: Ledger
    waits: Waits
    clock: Callable[[], float] = time.monotonic
    _told: frozenset[tuple[outages.Kind, int | None]] = frozenset()
    _told_at: float = 0.0

    def __call__(self) -> None:
        """Tells, where there is something new to tell."""
        found = self.waits.lasting()
        keys = frozenset((wait.kind, wait.job_id) for wait in found)
        is_fresh = not found or self.clock() - self._told_at < TELL_AGAIN_SECONDS
        if keys == self._told and is_fresh:
            return
        child = self.child
        teller = outages.Teller(child.id, child.host, child.pool, child.engine_key)
        with self.ledger.transaction() as connection:
            outages.tell(connection, teller, found)
        self._told, self._told_at = keys, self.clock()


def tell_wait(recorder: Recorder, job_id: int, outage: Exception) -> None:
    """Tells the recorder of an outage after which the same is tried again: a part is written, or a batch
    claimed that was released for it.
    """
    if isinstance(outage, StorageUnavailable) and not isinstance(outage, OutputRefused):
        recorder.waits(outages.Kind.STORAGE, job_id, str(outage), WAIT_HOLD_SECONDS)
    elif type(outage) is EngineUnavailable:
        recorder.waits(outages.Kind.SERVER, None, str(outage), WAIT_HOLD_SECONDS)


@contextmanager
def suppressed(
    kind: type[Exception], recorder: Recorder, problem: str, **fields: Any
) -> Iterator[None]:
    """Reports an error of this kind as a problem: the child goes on without what failed."""
    try:
        yield
    except kind as error:
        recorder.problem(problem, **fields, error=str(error))
