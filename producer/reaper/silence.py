"""How long Postgres was silent to a reaper: a worker that could not renew its leases either must not lose
them for that.
"""

import time

from nightshift.common.settings import Settings


class Silence:
    """When expired leases may be taken back.

    A failed duty, or a long silence of Postgres or of this process, means that workers could not renew
    their leases, or that this process missed it when they did. They get one lease of time from the next
    duty that succeeds.
    """

    def __init__(self, settings: Settings) -> None:
        self._lease_seconds = settings.lease_seconds
        # A process that renews in time may miss half of a lease, and no more.
        self._most_seconds = max(settings.lease_seconds / 2, 2 * settings.dispatch_seconds)
        self._heard_at = time.monotonic()
        self._failed = False
        self.reap_from = self._heard_at + settings.lease_seconds

    @property
    def may_reap(self) -> bool:
        """Whether the holders of expired leases had their time."""
        return time.monotonic() >= self.reap_from

    @property
    def is_long(self) -> bool:
        """Whether Postgres was last heard too long ago."""
        return time.monotonic() - self._heard_at > self._most_seconds

    def heard(self, *, worked: bool) -> None:
        """A duty has ended; `worked` says that Postgres answered it."""
        failed_before, self._failed = self._failed, not worked
        if failed_before or self._failed or self.is_long:
            self.reap_from = time.monotonic() + self._lease_seconds
        self._heard_at = time.monotonic()

    def answered(self) -> None:
        """Postgres has answered in the middle of a duty."""
        self._heard_at = time.monotonic()
