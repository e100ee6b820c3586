"""Group commit: what many threads ask for at the same time is done once for all of them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")


class Grouped(Generic[Wish, Answer]):
    """Hands wishes to `act`, up to `most` at a time; those that come while it acts go next.

    There is no thread and no pause of its own: whoever comes first acts at once, for itself, and
    then the first of those who came meanwhile acts for all of them ("group commit", Gray and
    Reuter 1993; the leader is one of the callers as in flat combining, Hendler et al. 2010).
    `act` takes the wishes in the order in which they came and returns an answer for each.
    """

    def __init__(self, act: Callable[[Sequence[Wish]], Sequence[Answer]], most: int) -> None:
        self._act = act
        self._most = most
        self._lock = threading.Lock()
        self._acting = False
        self._waiting: deque[tuple[Wish, Future[Answer | None]]] = deque()

    def ask(self, wish: Wish) -> Answer:
        """The answer to this wish; what `act` raises is raised for everybody in the group."""
        mine: Future[Answer | None] = Future()
        with self._lock:
            self._waiting.append((wish, mine))
            leads, self._acting = not self._acting, True
        if leads:
            return self._lead()
        try:
            answer = mine.result()
        except BaseException:
            self._leave(mine)
            raise
        # The leader of the last group wakes the next one by `None` in place of an answer.
        return self._lead() if answer is None else answer

    def _lead(self) -> Answer:
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        try:
            answers = self._act([wish for wish, _ in group])
            if len(answers) != len(group):
                raise ValueError(f"{len(answers)} answers to {len(group)} wishes")
        except BaseException as error:
            for _, future in group[1:]:
                future.set_exception(error)
            raise
        finally:
            self._hand_over()
        for (_, future), answer in zip(group[1:], answers[1:], strict=True):
            future.set_result(answer)
        return answers[0]

    def _hand_over(self) -> None:
        with self._lock:
            self._acting = bool(self._waiting)
            if self._waiting:
                # Under the lock: whoever leaves the queue knows whether it was made leader.
                self._waiting[0][1].set_result(None)

    def _leave(self, mine: Future[Answer | None]) -> None:
        """Somebody stopped waiting: by its answer, or interrupted; then its wish goes with it."""
        with self._lock:
            others = deque(each for each in self._waiting if each[1] is not mine)
            interrupted = len(others) < len(self._waiting)
            self._waiting = others
        if interrupted and mine.done():  # it had been made leader, and nobody else is
            self._hand_over()
