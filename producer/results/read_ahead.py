"""Reads on while what was read before is being used."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def read_ahead(items: Iterator[T], most: int) -> Generator[T, None, None]:
    """The same items in the same order, up to `most` of them taken ahead of time by a thread.

    An error comes where its item would have come. Whoever stops early waits for what is under way.
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        coming = deque(pool.submit(next, items, end) for _ in range(most))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield item
