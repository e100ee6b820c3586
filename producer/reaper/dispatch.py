"""Duty: batches are admitted to their queues, and the queues announced on the broker."""

from nightshift.common.failpoints import Moment, reached
from nightshift.producer.reaper import admission
from nightshift.producer.reaper.admission import Hints, Queue
from nightshift.producer.reaper.duty import Duty, Reaper

ADMISSIONS_A_ROUND = 10
"""Most transactions of one round that admit; each takes 30 to 40 ms, and the other duties wait."""


def duty(reaper: Reaper) -> Duty:
    """Each round."""
    return Duty("dispatch", 0.0, Dispatch(reaper))


class Dispatch:
    """The admission of one reaper, and its connection to the broker."""

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._hints = Hints(reaper.settings)
        reaper.at_end.callback(self._hints.close)

    def __call__(self) -> None:
        """Admits in short transactions until no queue has room. Announces after the first, so that
        children wake at once, and after the last: hints cost more than admissions.
        """
        reaper, open_queues = self._reaper, list[Queue]()
        reaper.pressed = False
        self._hints.begin_round()
        for turn in range(ADMISSIONS_A_ROUND):
            with reaper.ledger.transaction() as connection:
                queues = admission.admit(connection, reaper.settings.lease_seconds)
                reached(Moment.DISPATCHING)
            reaper.pressed = reaper.pressed or any(queue.runs_low for queue in queues)
            # None where another reaper has the duty meanwhile.
            open_queues = queues or open_queues
            if turn == 0:
                self._announce(open_queues)
            if sum(queue.admitted for queue in queues) < admission.MOST_ADMITTED:
                break
        else:
            reaper.pressed = True
        if turn > 0:
            self._announce(open_queues)

    def _announce(self, queues: list[Queue]) -> None:
        self._reaper.watchdog.alive()
        self._hints.announce(queues)
