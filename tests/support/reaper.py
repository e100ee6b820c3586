"""A reaper of this process, whose rounds a test makes one by one."""

from prometheus_client import CollectorRegistry

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.reaper.duty import Reaper
from nightshift.producer.reaper.loop import at_work
from nightshift.producer.reaper.metrics import Rounds


class OneReaper(Reaper):
    """A reaper that reaps from its first round on; `failed` are the names of duties that failed."""

    def __init__(self, ledger: Ledger, **settings: float | str) -> None:
        super().__init__(ledger, Settings(**settings), Rounds(CollectorRegistry()), delete=print)
        self.silence.reap_from = 0
        self.failed: list[str] = []
        self._turns, _ = at_work(self)

    def round(self) -> None:
        self._turns.turn()

    def attempt(self, name, work):
        done, more = super().attempt(name, work)
        if not done:
            self.failed.append(name)
        return done, more

    def close(self) -> None:
        self.at_end.close()
