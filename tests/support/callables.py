"""Callables that do what their rows say; a host loads this file without any of ours."""

import datetime
import decimal
import mmap
import os
import re
import signal
import sys
import time
from typing import Any

import numpy as np

HELD: list[bytes | mmap.mmap] = []

MIB = 2**20

NEVER_TOUCHED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
"""Address space alone, as CUDA reserves it; 0x4000 is MAP_NORESERVE."""

ENDLESS: dict[str, Any] = {}
ENDLESS["self"] = ENDLESS

ANSWERS = {
    "a number": 5,
    "nothing": None,
    "a text": "text",
    "a key that is none": {7: 1},
    "a dict that holds itself": {"v": ENDLESS},
    "an object": {"v": object()},
    "a number that is too large": {"v": 2**70},
    "a mixed list": {"v": [1, "a"]},
    "another type": {"v": "text"},
    "half a character": {"v": 7, "said": "a\x00b\ud800"},
    "half a character as a name": {"v": 7, "\ud800": 1},
    "numpy": {"v": np.int64(7), "f": np.float32(0.5), "x": np.arange(3, dtype=np.float32)},
    "a table of numpy": {"v": 7, "x": np.ones((2, 2))},
    "nested": {"v": 7, "n": {"a": [{"b": np.float32(0.5)}, {"b": None}], "t": (1, 2)}},
    "a date": {"v": 7, "d": datetime.date(2026, 7, 14), "p": decimal.Decimal("1.50")},
}
"""What a row gets by its name; every other row gets its own number."""


RETURNS = {"return nothing": None, "return a text": "text", "return a dict": {"a": 1}}
"""What a call returns in place of a list."""


def obey(rows: list[dict[str, Any]]) -> Any:
    """Does what the rows of a call say, and answers each with `v`, its number."""
    told = {row["do"] for row in rows}
    _raise(told)
    _hurt(told)
    for order, result in RETURNS.items():
        if order in told:
            return result
    if "return too few" in told:
        return rows[1:]
    return [ANSWERS.get(row["do"], {"v": row["n"]}) for row in rows]


def _raise(told: set[str]) -> None:
    if "raise" in told:
        raise ValueError("told to raise")
    if "raise what cannot be said" in told:
        raise Unspeakable
    if "exit" in told:
        sys.exit(3)


def _hurt(told: set[str]) -> None:
    if "leave" in told:
        os._exit(3)
    if "kill" in told:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in told:
        time.sleep(3600)
    if "keep the lock" in told:
        re.match("(a+)+$", 99 * "a" + "b")
    if "reserve" in told:
        HELD.append(mmap.mmap(-1, 64 * 1024 * MIB, flags=NEVER_TOUCHED))
    while "leak" in told and len(HELD) < 100:
        HELD.append(b"x" * (16 * MIB))
        time.sleep(0.02)
    if "close everything" in told:
        os.closerange(3, 256)
    if "speak out of turn" in told:
        for number in range(3, 256):
            try:
                os.write(number, b"x" * 64)
            except OSError:
                continue


class Unspeakable(Exception):
    """An error whose text is an error."""

    def __str__(self) -> str:
        raise RuntimeError


def who(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the process of the function is; prints on the way."""
    print("a line of the function", flush=False)
    print("a second line", file=sys.stderr)
    said = sys.stdin.read()
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    ours = [name for name in sys.modules if name.startswith("nightshift")]
    found = {"pid": os.getpid(), "environment": environment, "ours": ours, "read": said}
    return [found for _ in rows]


def leaky(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps 64 MiB more each time."""
    HELD.append(b"x" * (64 * MIB))
    return [{"pid": os.getpid()} for _ in rows]


def square(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Squares numbers, raises for what is none, sleeps where it is told to."""
    return Power(2)(rows)


class Power:
    """The same for any exponent, as a class."""

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        time.sleep(sum(row["seconds"] for row in rows))
        return [{"power": row["n"] ** self.exponent} for row in rows]


class Counter:
    """Made once in a process, and called for each batch."""

    made = 0

    def __init__(self, start: int, step: int = 1) -> None:
        Counter.made += 1
        self.next, self.step = start, step

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        obey(rows)
        found = [{"n": self.next + self.step * at, "made": Counter.made} for at in range(len(rows))]
        self.next += self.step * len(rows)
        return found


class Slow:
    """Takes longer to be made than its calls may take."""

    def __init__(self) -> None:
        time.sleep(1)

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = obey(rows)
        return found


class Silent:
    """Cannot be called."""


number = 7
