"""What a child waits for: a subscriber of its recorder, whose findings the heartbeat tells the ledger."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.common.ledger.fleet.outages import Kind, Wait
from nightshift.common.text import kept_message
from nightshift.worker.telemetry.recorder import Subscriber

LASTING_SECONDS = 2.0
"""A wait that is shorter is no outage: servers refuse now and then, and a rate makes each row wait."""


QUIET_SECONDS = 15.0
"""A storage is there again once nothing had to wait for it for so long: the input of a job may lie in two
places, and a disk may have room for a small part only. So what is done meanwhile proves little.
"""


@dataclass(slots=True)
class _Known:
    since: float
    heard: float
    until: float
    why: str


@dataclass(eq=False)
class Waits(Subscriber):
    """The waits of a child by kind and job. For many threads at once; `clock` gives monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[Kind, int | None], _Known] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def waits(self, kind: Kind, job_id: int | None, why: str, hold_seconds: float) -> None:
        """Begins a wait, or goes on with one that was heard of in its `hold_seconds`."""
        now = self.clock()
        with self._changing:
            known = self._known.get((kind, job_id))
            since = known.since if known is not None and known.until >= now else now
            self._known[kind, job_id] = _Known(since, now, now + hold_seconds, why)

    def went_on(self, kind: Kind, job_id: int | None) -> None:
        """The wait is over; that for a storage after QUIET_SECONDS."""
        if not self._known:  # a row must not pay for a lock
            return
        with self._changing:
            if kind is not Kind.STORAGE:
                self._known.pop((kind, job_id), None)
            elif (known := self._known.get((kind, job_id))) is not None:
                known.until = min(known.until, known.heard + QUIET_SECONDS)

    def lasting(self) -> list[Wait]:
        """What the child waits for now, and for how long."""
        now = self.clock()
        with self._changing:
            self._known = {key: each for key, each in self._known.items() if each.until >= now}
            return [
                Wait(kind, job_id, now - each.since, kept_message(each.why))
                for (kind, job_id), each in self._known.items()
                if now - each.since >= LASTING_SECONDS
            ]
