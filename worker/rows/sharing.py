"""Rows whose requests are equal run once: one of them runs, and the others get its answer."""

import json
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from nightshift.common.formats.values import to_rows
from nightshift.common.spec import FunctionTask, JobSpec, RequestsTask
from nightshift.worker.engines.images import Image
from nightshift.worker.engines.protocol import Answer, Outcome, Request

KEPT_BYTES = 64 * 2**20
"""Memory of the answers that a child keeps, for rows that come later."""

BESIDE_BYTES = 400
"""What an answer takes beside its values: its key, its objects, its place."""

Key = tuple[int, bytes]
"""A job, and the digest of a request."""


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
    messages = [
        (message["role"], _content(message["content"])) for message in request.messages or ()
    ]
    return messages, request.is_plain_prompt, request.max_tokens, request.text, request.text_pair


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
    """The answers that a child has given last, at most `most_bytes` of them. For many threads."""

    most_bytes: int = KEPT_BYTES
    _kept: OrderedDict[Key, tuple[Answer, int]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Key) -> Answer | None:
        """The answer to an equal request, as another row takes it; None where there is none."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def keep(self, key: Key, answer: Answer) -> None:
        """Keeps an answer, as another row takes it."""
        size = BESIDE_BYTES + _size(answer.columns)
        with self._lock:
            if (known := self._kept.pop(key, None)) is not None:
                self._bytes -= known[1]
            self._kept[key] = answer, size
            self._bytes += size
            while self._bytes > self.most_bytes:
                _, (_, gone) = self._kept.popitem(last=False)
                self._bytes -= gone


def _size(value: Any) -> int:
    """About the memory of a value, in bytes."""
    if isinstance(value, Mapping):
        return sum(_size(each) for each in value.values())
    if isinstance(value, list):
        return sys.getsizeof(value) + 32 * len(value)
    return sys.getsizeof(value)


@dataclass(slots=True)
class Rounds:
    """The rows of one batch in rounds: in the first one row of each group of equal ones runs, in the
    next those whose leader got no answer that counts for them, each by itself.

    `keys` and `row_index` are those of the requests, by position. `take(position, answer)` gets the
    answer of a row that did not run, from any thread.
    """

    keys: Sequence[Key | None]
    row_index: Sequence[int]
    answers: Answers
    take: Callable[[int, Answer], object]
    _left: list[int] = field(init=False)
    _led: set[Key] = field(default_factory=set)
    _followers: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._left = list(range(len(self.keys)))

    def next(self) -> list[int]:
        """The positions that run now, ascending; the others that are left wait for one of them. Rows
        whose answer is known get that answer.
        """
        runs: list[int] = []
        known: list[tuple[int, Answer]] = []
        with self._lock:
            led_before = set(self._led)
            for position in self._left:
                key = self.keys[position]
                if key is not None and (answer := self.answers.get(key)) is not None:
                    known.append((position, answer))
                elif key is None or key in led_before or key not in self._led:
                    runs.append(position)
                    if key is not None:
                        self._led.add(key)
                else:
                    self._followers[key].append(position)
            self._left = []
        for position, answer in known:
            self.take(position, answer)
        return runs

    def ran(self, position: int, outcome: Outcome) -> None:
        """A row that ran has an outcome: an answer is that of its followers, too. Anything else says
        nothing of them.
        """
        key = self.keys[position]
        if key is None or not isinstance(outcome, Answer):
            return
        shared = replace(
            outcome,
            prompt_tokens=0,
            output_tokens=0,
            cached_tokens=0,
            answered_by=self.row_index[position],
        )
        self.answers.keep(key, shared)
        with self._lock:
            followers = self._followers.pop(key, [])
        for follower in followers:
            self.take(follower, shared)

    def over(self) -> int:
        """The round is over: how many rows still wait; they are left for the next."""
        with self._lock:
            self._left = sorted(each for group in self._followers.values() for each in group)
            self._followers.clear()
            return len(self._left)
