"""What Postgres itself measured of whole transactions: from its log, in which it notes the duration of
every statement of a sample of them. A client's own time, and its wait for a core, is not in these.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nightshift.common.ledger.batches import claims, commits, leasing

SAMPLE_RATE = 0.2
"""Share of the transactions that are noted; a note costs less than a tenth of a millisecond."""

LINE = re.compile(r"\S+ \S+ \S+ \[(?P<pid>\d+)\] (?P<level>\w+):  (?P<text>.*)", re.DOTALL)
NOTED = re.compile(r"duration: (?P<ms>[\d.]+) ms  \w+[^:]*: (?P<statement>.*)", re.DOTALL)


def _begins(statement: object) -> str:
    """A statement up to its first parameter, as one line."""
    return " ".join(str(statement).partition(":")[0].split())


KINDS = {
    "claim": _begins(claims.FAIR_SHARE),
    "commit": _begins(commits.COMMIT),
    "heartbeat": _begins(leasing.RENEW),
}
"""The statement by which a transaction of each kind is known."""


class ServerTimes:
    """Notes from now on, at the end of the log of one server."""

    def __init__(self, connection: Any, log: Path) -> None:
        self._log, self._from = log, log.stat().st_size
        connection.execute(f"ALTER SYSTEM SET log_transaction_sample_rate = {SAMPLE_RATE}")
        connection.execute("ALTER SYSTEM SET log_parameter_max_length = 0")
        connection.execute("SELECT pg_reload_conf()")
        self._connection = connection

    def end(self) -> dict[str, list[float]]:
        """Notes no more; returns milliseconds of each transaction from BEGIN to COMMIT, by kind."""
        self._connection.execute("ALTER SYSTEM RESET log_transaction_sample_rate")
        self._connection.execute("SELECT pg_reload_conf()")
        with self._log.open(encoding="utf-8", errors="replace") as lines:
            lines.seek(self._from)
            return transactions(lines)


def transactions(lines: Iterable[str]) -> dict[str, list[float]]:
    """Milliseconds of each transaction in a log of Postgres, by kind. Pure."""
    found: dict[str, list[float]] = defaultdict(list)
    open_ones: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for entry in _entries(lines):
        line = LINE.match(entry)
        noted = line and NOTED.match(line["text"])
        if not line or not noted:
            continue
        statement = " ".join(noted["statement"].split())
        if statement.startswith("BEGIN"):
            open_ones[line["pid"]] = []
        open_ones[line["pid"]].append((float(noted["ms"]), statement))
        if statement == "COMMIT":
            noted_ones = open_ones.pop(line["pid"])
            for kind, begins in KINDS.items():
                if any(text.startswith(begins) for _, text in noted_ones):
                    found[kind].append(sum(milliseconds for milliseconds, _ in noted_ones))
    return found


def _entries(lines: Iterable[str]) -> Iterator[str]:
    """Postgres begins the further lines of one entry with a tab."""
    entry = ""
    for line in lines:
        if not line.startswith("\t"):
            yield entry
            entry = ""
        entry += line
    yield entry
