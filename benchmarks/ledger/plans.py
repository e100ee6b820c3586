"""The plans of the statements that a piece of product code runs, from EXPLAIN on the same statements."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection

PLANNED = ("SELECT", "WITH", "UPDATE", "INSERT", "DELETE")

LARGE = {"batches", "attempts"}
"""Tables that no statement of a round may read from end to end."""


class _Seen(Exception):
    """Rolls back what was explained."""


def explain(
    ledger: Ledger, act: Callable[[Connection], object], how: str = "FORMAT JSON"
) -> list[dict[str, Any]]:
    """The nodes of every plan of `act`, which is run and rolled back."""
    plans: list[Any] = []

    class Explaining(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            if isinstance(query, str) and query.lstrip().startswith(PLANNED):
                super().execute(f"EXPLAIN ({how}) {query}", params, **options)
                plans.append(self.fetchone()[0][0]["Plan"])  # type: ignore[index]
            return super().execute(query, params, **options)

    try:
        with ledger.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            usual, driver.cursor_factory = driver.cursor_factory, Explaining
            try:
                act(connection)
            finally:
                driver.cursor_factory = usual
            raise _Seen
    except _Seen:
        return [node for plan in plans for node in _nodes(plan)]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def reads(nodes: list[dict[str, Any]]) -> str:
    """How the large tables are read: node types and indexes."""
    found = [
        f"{node['Node Type']} {node.get('Index Name', node.get('Relation Name', ''))}".strip()
        for node in nodes
        if node.get("Index Name") or node.get("Relation Name") in LARGE
    ]
    return ", ".join(dict.fromkeys(name for name in found if not name.startswith("ModifyTable")))


def blocks(ledger: Ledger, act: Callable[[Connection], object]) -> int:
    """Blocks of 8 KiB that the largest statement of `act` looks at; no other load changes it."""
    nodes = explain(ledger, act, "ANALYZE, BUFFERS, FORMAT JSON")
    # A node counts what the nodes below it read.
    return max(int(node["Shared Hit Blocks"] + node["Shared Read Blocks"]) for node in nodes)


def scanned(nodes: list[dict[str, Any]]) -> list[str]:
    """Large tables that are read from end to end."""
    return sorted(
        {
            node["Relation Name"]
            for node in nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE
        }
    )
