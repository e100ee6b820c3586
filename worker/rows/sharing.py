"""Rows whose requests are equal run once: one of them runs, and the others get its answer."""

import json
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.formats.values import to_rows
from nightshift.common.spec import FunctionTask, JobSpec, RequestsTask
from nightshift.worker.engines.images import Image
from nightshift.worker.engines.pooling import Shares
from nightshift.worker.engines.protocol import Answer, Outcome, Request, Usage, with_usage

KEPT_BYTES = 64 * 2**20
"""Memory of the answers that a child keeps, for rows that come later."""

BESIDE_BYTES = 400
"""What an answer takes beside its values: its key, its objects, its place."""

Key = tuple[int, bytes]
"""A job, and the digest of a request."""

Follower = Callable[[Answer], object]
"""Takes the answer to an equal request, from any thread."""


def keys(
    job_id: int, spec: JobSpec, requests: Sequence[Request], rows: pa.Table | None
) -> list[Key | None]:
    """For each request of a batch what equal requests have in common; None for one that shares nothing.
    `rows` are the rows of the requests, for a function.
    """
    task = spec.task
    if isinstance(task, FunctionTask):
        assert rows is not None
        own = spec.input.id
        seen: Iterator[Any] = (
            {name: value for name, value in row.items() if name != own} for row in to_rows(rows)
        )
    elif isinstance(task, RequestsTask):
        greedy = (each.body or {} for each in requests)
        seen = (
            json.dumps(body, sort_keys=True)
            if task.dedupe or body.get("temperature") == 0
            else None
            for body in greedy
        )
    else:
        seen = (_said(request) for request in requests)
    return [None if each is None else (job_id, _digest(each)) for each in seen]


def _said(request: Request) -> Any:
    """Every field that can change the answer: all fields except the row's number. None for a row that is sampled
    by its own column.
    """
    if request.sampling.get("temperature", 0) > 0:
        return None
    messages = [
        {**message, "content": _content(message["content"])} for message in request.messages or ()
    ]
    return messages, _BESIDE_MESSAGES(request)


_BESIDE_MESSAGES = attrgetter(
    *(each.name for each in fields(Request) if each.name not in ("row_index", "messages"))
)


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_image(part["image"]) if part["type"] == "image" else part["text"] for part in content]


def _image(image: Image) -> tuple[str, str]:
    if isinstance(image.value, bytes):
        return "bytes", blake2b(image.value, digest_size=16).hexdigest()
    return "uri", image.value


def _digest(seen: Any) -> bytes:
    return blake2b(repr(seen).encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(slots=True)
class Answers:
    """The answers that a child has given last, at most `most_bytes` of them, and the requests that run in
    some batch now, each with the rows of other batches that follow it. For many threads.
    """

    most_bytes: int = KEPT_BYTES
    _kept: OrderedDict[Key, tuple[Answer, int]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _running: dict[Key, list[Follower]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Key) -> Answer | None:
        """The answer to an equal request, as another row takes it; None where there is none."""
        with self._lock:
            return self._found(key)

    def _found(self, key: Key) -> Answer | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def lead(self, key: Key, follower: Follower) -> Answer | bool:
        """The answer to an equal request. Where there is none, True for who leads from now on, until
        `keep` or `release`; False where an equal request runs, whose answer `follower` gets then.
        """
        with self._lock:
            if (found := self._found(key)) is not None:
                return found
            if key not in self._running:
                self._running[key] = []
                return True
            self._running[key].append(follower)
            return False

    def release(self, keys: Iterable[Key]) -> None:
        """Requests that led have ended without an answer: their followers get none."""
        with self._lock:
            for key in keys:
                self._running.pop(key, None)

    def keep(self, key: Key, answer: Answer) -> None:
        """Keeps an answer, as another row takes it, and gives it to the followers in other batches."""
        size = BESIDE_BYTES + _size(answer.columns)
        with self._lock:
            followers = self._running.pop(key, ())
            if (known := self._kept.pop(key, None)) is not None:
                self._bytes -= known[1]
            self._kept[key] = answer, size
            self._bytes += size
            while self._bytes > self.most_bytes:
                _, (_, gone) = self._kept.popitem(last=False)
                self._bytes -= gone
        for follower in followers:
            follower(answer)


def _size(columns: Mapping[str, Any]) -> int:
    """About the memory of the values in bytes, at any depth; that of `columns` itself is in BESIDE_BYTES."""
    numbers = {float, int, bool, type(None)}
    total, waiting = 0, list(columns.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, Shares):
            value = value.numbers
        total += sys.getsizeof(value)
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            if numbers.issuperset(map(type, value)):  # an embedding has thousands
                total += 32 * len(value)
            else:
                waiting += value
    return total


def _own(value: Any) -> Any:
    """The value in memory of its own: a line of an array keeps the answers of all rows of its pass."""
    if isinstance(value, Shares):
        return Shares(value.labels, value.numbers.copy())
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass(slots=True)
class Rounds:
    """The rows of one batch in rounds: in the first one row of each group of equal ones runs, unless an
    equal one runs in another batch; in the next those whose leader got no answer that counts for them,
    each by itself.

    `keys` and `row_index` are those of the requests, by position. `take(position, answer)` gets the
    answer of a row that did not run, from any thread.
    """

    keys: Sequence[Key | None]
    row_index: Sequence[int]
    answers: Answers
    take: Callable[[int, Answer], object]
    _left: list[int] = field(init=False)
    _is_first: bool = True
    _led: set[Key] = field(default_factory=set)
    _leading: set[Key] = field(default_factory=set)
    _followers: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    _abroad: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._left = list(range(len(self.keys)))

    def next(self) -> list[int]:
        """The positions that run now, ascending; the others that are left wait for one of them, or in
        the first round for one of another batch. Rows whose answer is known get that answer.
        """
        runs: list[int] = []
        known: list[tuple[int, Answer]] = []
        with self._lock:
            led_before = set(self._led)
            for position in self._left:
                key = self.keys[position]
                if key is None:
                    runs.append(position)
                elif key in self._led and key not in led_before:
                    self._followers[key].append(position)
                elif isinstance(answer := self._leader_of(key, position), Answer):
                    known.append((position, answer))
                elif answer:
                    runs.append(position)
                    self._led.add(key)
                    if self._is_first:
                        self._leading.add(key)
                else:
                    self._abroad.add(position)
            self._left, self._is_first = [], False
        for position, answer in known:
            self.take(position, answer)
        return runs

    def _leader_of(self, key: Key, position: int) -> Answer | bool:
        """The answer, or whether the row runs itself. A row follows one of another batch once: a batch
        never waits for another.
        """
        if self._is_first:
            return self.answers.lead(key, partial(self._answered_abroad, position))
        return self.answers.get(key) or True

    def _answered_abroad(self, position: int, answer: Answer) -> None:
        with self._lock:  # until the row has its answer: a round that is over leaves no row out
            if position in self._abroad:
                self._abroad.discard(position)
                self.take(position, answer)

    def ran(self, position: int, outcome: Outcome) -> None:
        """A row that ran has an outcome: an answer is that of its followers, too. Anything else says
        nothing of them.
        """
        key = self.keys[position]
        if key is None:
            return
        if not isinstance(outcome, Answer):
            self._release([key])
            return
        shared = replace(
            with_usage(outcome, Usage()),
            answered_by=self.row_index[position],
            columns={name: _own(value) for name, value in outcome.columns.items()},
        )
        self.answers.keep(key, shared)
        with self._lock:
            self._leading.discard(key)
            followers = self._followers.pop(key, [])
        for follower in followers:
            self.take(follower, shared)

    def over(self) -> int:
        """The round is over: how many rows still wait; they are left for the next."""
        with self._lock:
            waiting = {each for group in self._followers.values() for each in group}
            self._left = sorted(waiting | self._abroad)
            self._followers.clear()
            self._abroad.clear()
            return len(self._left)

    def end(self) -> None:
        """No row of the first round runs any more: rows of other batches wait for none of them."""
        self._release(list(self._leading))

    def _release(self, keys: Sequence[Key]) -> None:
        with self._lock:
            released = self._leading.intersection(keys)
            self._leading -= released
        self.answers.release(released)
