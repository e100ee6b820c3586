"""Reads ahead while what was read before is being used."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def read_ahead(items: Iterator[T], most: int) -> Generator[T, None, None]:
    """The same items in the same order; a thread takes up to `most` of them ahead of time.

    An error comes where its item would have come. A caller that stops early waits for the item that
    is being taken.
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        coming = deque(pool.submit(next, items, end) for _ in range(most))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield item
