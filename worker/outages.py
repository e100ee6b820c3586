"""How a child waits for a ledger or a store that is away: finished work outlives an outage."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import tenacity

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.worker.telemetry.recorder import Recorder

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


@contextmanager
def suppressed(
    kind: type[Exception], recorder: Recorder, problem: str, **fields: Any
) -> Iterator[None]:
    """Reports an error of this kind as a problem: the child goes on without what failed."""
    try:
        yield
    except kind as error:
        recorder.problem(problem, **fields, error=str(error))
