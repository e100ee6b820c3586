"""What a process does at a signal, in a thread beside its main one."""

import signal
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue


def act_on(actions: Mapping[signal.Signals, Callable[[], object]]) -> None:
    """Calls the action of each signal that comes. For the main thread.

    Python runs a handler in the middle of whatever the main thread does. An action that needs a lock, as
    `set` of an Event does, would wait there for ever where the main thread holds the lock, as its `wait`
    does for moments. `put` of a SimpleQueue may be called from a handler, as Python's documentation says.
    """
    arrived = SimpleQueue[signal.Signals]()

    def act() -> None:
        while True:
            actions[arrived.get()]()

    threading.Thread(target=act, name="signals", daemon=True).start()
    for number in actions:
        signal.signal(number, lambda number, _: arrived.put(signal.Signals(number)))
