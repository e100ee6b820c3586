"""The channel between a supervisor and one of its children: two sockets of this machine, and no
Postgres. The supervisor says after each look whether work waits for the child, or that the child is to
claim nothing, and at the end that the machine is taken away. The child says at a heartbeat that it
lives and holds nothing.
"""

import os
import select
import socket
import threading
import time
from contextlib import suppress
from enum import IntEnum
from typing import Self

IDLE = b"i"
"""What a child says."""

SAID_BYTES = 4096
"""Words that are read at once: more than a socket keeps for a process that was frozen."""


class Word(IntEnum):
    """What a supervisor says: the higher word counts, where a child finds several."""

    NOTHING = 0
    WORK = 1

    SIBLINGS_IDLE = 2
    """No batch waits, and siblings of the child, which holds some, hold none."""

    HOLD = 3
    """The slot is cordoned: the child claims nothing until it hears something else."""

    PREEMPT = 4
    """The machine is taken away: a drain has less time, from now on."""


class ToChild:
    """The supervisor's end. It never waits: a child that reads nothing misses words."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[Self, socket.socket]:
        """The end of the supervisor, and the end that a child inherits."""
        own, childs = socket.socketpair()
        return cls(own), childs

    def tell(self, word: Word) -> None:
        """Says whether work waits for the child, or for its siblings."""
        with suppress(OSError):  # the child is frozen, or gone
            self._end.send(bytes([word]))

    def said_idle(self) -> bool:
        """Whether the child has said since the last call that it holds nothing."""
        with suppress(OSError):
            return bool(self._end.recv(SAID_BYTES))
        return False

    def close(self) -> None:
        """The child is gone."""
        self._end.close()


class ToSupervisor:
    """The child's end, for several threads. `heard_at` is when the supervisor last said something
    (monotonic seconds); `is_preempted` from the notice on that the machine is taken away.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._reading = threading.Lock()
        self.heard_at = time.monotonic()
        self.is_preempted = False

    def wait(self, seconds: float) -> Word | None:
        """Waits for a word, at most so long; None when the supervisor said nothing."""
        said = b""
        if select.select([self._descriptor], [], [], seconds)[0]:
            with self._reading, suppress(OSError):
                said = os.read(self._descriptor, SAID_BYTES)
                self.is_preempted = self.is_preempted or Word.PREEMPT in said
            if not said:  # the supervisor is gone, and this process ends in a moment
                time.sleep(seconds)
        if not said:
            return None
        self.heard_at = time.monotonic()
        return Word(max(said))

    def say_idle(self, listens_seconds: float) -> bool:
        """Lets the supervisor beat for this child; False where the supervisor has said nothing for
        `listens_seconds`: then the child must beat for itself.
        """
        if time.monotonic() - self.heard_at > listens_seconds:
            return False
        with suppress(OSError):
            return os.write(self._descriptor, IDLE) > 0
        return False
