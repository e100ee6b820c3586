"""The seed of a row, the same in every engine."""

import hashlib


def row_seed(seed: int, row_index: int) -> int:
    """The seed of a sampled row: a hash of the job's seed and its place in the dataset."""
    digest = hashlib.blake2b(f"{seed}:{row_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
