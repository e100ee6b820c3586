"""What arranging costs: the time of the pass over the rows, and the room of the sorted copy."""

from dataclasses import dataclass

from nightshift.producer.submit.planning.planner import Plan

ROWS_A_SECOND = 240_000
BYTES_A_SECOND = 100_000_000
"""Rows of 200 bytes, and bytes of rows of 8 KB, on two cores by `benchmarks.arranged.pass_memory`
(2026-11-25: 40 million rows in 168 s, 2.4 GB in 24 s)."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """About how long the pass takes (seconds, at least 1), and how large its copy is at most (bytes)."""

    seconds: float
    copy_bytes: int


def pass_cost(plan: Plan) -> PassCost:
    """By the rows of a plan, and by the bytes of its files as they lie on disk."""
    size_bytes = sum(file.size for file in plan.files)
    seconds = max(1.0, plan.rows_total / ROWS_A_SECOND, size_bytes / BYTES_A_SECOND)
    return PassCost(seconds, size_bytes)
