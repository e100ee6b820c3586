"""Group commit: what many threads request at the same time is done once for all of them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from nightshift.common.text import counted

Request = TypeVar("Request")
Result = TypeVar("Result")


class GroupCommit(Generic[Request, Result]):
    """Hands requests to `act`, up to `most` at a time; those that come while it acts go next.

    There is no extra thread and no pause: the first caller acts at once, for itself, and then the
    first of the callers that came meanwhile acts for all of them ("group commit", Gray and Reuter
    1993; the leader is one of the callers as in flat combining, Hendler et al. 2010).
    `act` takes the requests in the order in which they came and returns a result for each.
    """

    def __init__(self, act: Callable[[Sequence[Request]], Sequence[Result]], most: int) -> None:
        self._act = act
        self._most = most
        self._lock = threading.Lock()
        self._acting = False
        self._waiting: deque[tuple[Request, Future[Result | None]]] = deque()

    def submit(self, request: Request) -> Result:
        """The result of this request; what `act` raises is raised for every caller of the group."""
        own: Future[Result | None] = Future()
        with self._lock:
            self._waiting.append((request, own))
            leads, self._acting = not self._acting, True
        if leads:
            return self._lead()
        try:
            result = own.result()
        except BaseException:
            self._leave(own)
            raise
        # The leader of the last group wakes the next leader by `None` in place of a result.
        return self._lead() if result is None else result

    def _lead(self) -> Result:
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        try:
            results = self._act([request for request, _ in group])
            if len(results) != len(group):
                raise ValueError(
                    f"{counted(len(results), 'result')} of {counted(len(group), 'request')}"
                )
        except BaseException as error:
            for _, future in group[1:]:
                future.set_exception(error)
            raise
        finally:
            self._hand_over()
        for (_, future), result in zip(group[1:], results[1:], strict=True):
            future.set_result(result)
        return results[0]

    def _hand_over(self) -> None:
        with self._lock:
            self._acting = bool(self._waiting)
            if self._waiting:
                # Under the lock: a caller that leaves the queue knows whether it was made leader.
                self._waiting[0][1].set_result(None)

    def _leave(self, own: Future[Result | None]) -> None:
        """Ends a wait by an error: that of the group, or an interrupt; then the request goes too."""
        with self._lock:
            others = deque(each for each in self._waiting if each[1] is not own)
            interrupted = len(others) < len(self._waiting)
            self._waiting = others
        if interrupted and own.done():  # it had been made leader, and no other caller is
            self._hand_over()
