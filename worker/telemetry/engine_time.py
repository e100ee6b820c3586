"""How long a child was at work for each job: what its commits account for."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable


class EngineTime:
    """The time in which a child holds batches, shared between jobs by the rows that it holds.

    However many batches overlap, a second of the child is counted once. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._rows: dict[int, int] = defaultdict(int)
        self._seconds: dict[int, float] = defaultdict(float)
        self._lock = threading.Lock()

    def hold(self, job_id: int, rows: int) -> None:
        """A batch of so many rows is held from now on."""
        with self._lock:
            self._pass()
            self._rows[job_id] += rows

    def release(self, job_id: int, rows: int) -> None:
        """A batch of so many rows is held no more."""
        with self._lock:
            self._pass()
            self._rows[job_id] -= rows
            if not self._rows[job_id]:
                del self._rows[job_id]

    def take(self, job_id: int) -> int:
        """Microseconds of the job since they were last taken: for one commit."""
        with self._lock:
            self._pass()
            taken = int(self._seconds[job_id] * 1e6)
            self._seconds[job_id] -= taken / 1e6
            return taken

    def give_back(self, job_id: int, microseconds: int) -> None:
        """Returns microseconds that were not committed: the job's next commit accounts for them."""
        with self._lock:
            self._seconds[job_id] += microseconds / 1e6

    def _pass(self) -> None:
        now = self._clock()
        rows = sum(self._rows.values())
        for job_id, held in self._rows.items():
            self._seconds[job_id] += (now - self._since) * held / rows
        self._since = now
