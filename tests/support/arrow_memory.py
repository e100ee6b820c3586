"""The most memory that Arrow takes while something runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_POOLS: list[pa.MemoryPool] = []
"""What was made in a block may live longer than the block, and its pool must live as long."""


@contextmanager
def counted() -> Iterator[pa.MemoryPool]:
    """A pool of memory for all that Arrow makes in the block; `max_memory()` has the most bytes at once."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
