"""Whether the parts hold each row once, with the ids, errors and counts that the ledger tells."""

from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.errors import NightshiftError, SourceChanged
from nightshift.common.formats import output_parts, registry
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.batches.multirange import from_multirange
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import audit
from nightshift.common.storage import storage
from nightshift.common.text import kept_message
from nightshift.producer.results import part_files
from nightshift.producer.verify.checks import Check, some
from nightshift.producer.verify.row_ranges import Range, ascends, cover, ranges_of, shown

READERS = 4
READ_BYTES = 256 * 2**20


Facts = tuple[int, int, str]
"""Rows, bytes and SHA-256 of a part."""


def facts_of(part: Row) -> Facts:
    """What the ledger says of a part, to be held against the manifest."""
    return part["row_count"], part["part_bytes"], part["part_checksum"]


@dataclass(slots=True)
class PartSeen:
    """What was read of one part; problems go to the check of their name."""

    ranges: list[Range] = field(default_factory=list)
    errors: list[tuple[int, str | None, str, str]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    rows: int = 0
    ids_compared: int = 0


class PartsAudit:
    """One pass over the parts of a job.

    `complete` says that every row must be there; else some may still be missing. `facts` holds
    what the ledger says of every part, by name, once the checks are made.
    """

    def __init__(self, ledger: Ledger, job: Job, *, complete: bool) -> None:
        self._ledger = ledger
        self._job = job
        self._complete = complete
        self._cache = registry.ReadCache(READ_BYTES)
        self.facts: dict[str, Facts] = {}
        self._checks = {name: Check(name) for name in ("parts", "rows", "ids", "row errors")}

    def checks(self, rows_total: int) -> Iterator[Check]:
        """Reads every part, and says what holds of parts, rows, ids and row errors."""
        ranges: list[Range] = []
        compared = failed = size = 0
        with ThreadPoolExecutor(READERS) as readers:
            for page in part_files.pages(self._ledger, self._job):
                looked_at = list(readers.map(self._look_at, page))
                for seen in self._settle(page, looked_at):
                    ranges += seen.ranges
                    compared += seen.ids_compared
                    failed += len(seen.errors)
                size += sum(part["part_bytes"] for part in page)
        self._check_rows(ranges, rows_total)
        rows = sum(stop - start for start, stop in ranges)
        said = {
            "parts": f"{len(self.facts):,} parts, {size:,} bytes, each with its size and checksum",
            "rows": f"{rows:,} of {rows_total:,} rows, each once",
            "ids": f"{compared:,} ids equal those of the input",
            "row errors": f"the same in parts and ledger: {failed:,}",
        }
        for name, check in self._checks.items():
            check.said = said[name]
            yield check.closed()

    def _look_at(self, part: Row) -> PartSeen:
        seen = PartSeen()
        name = part["part_name"]
        uri = output_parts.located(self._job.output_uri, name)
        if uri is None:
            seen.problems.append(("parts", f"{name} does not exist"))
            return seen
        try:
            size = storage.stat(uri).size
            if size != part["part_bytes"]:
                seen.problems.append(
                    ("parts", f"{name} has {size:,} bytes and not {part['part_bytes']:,}")
                )
            elif storage.checksum(uri) != part["part_checksum"]:
                seen.problems.append(("parts", f"{name} does not match its checksum"))
            table = part_files.read(self._job, name, uri)
            self._look_into(part, table, seen)
        except (NightshiftError, pa.ArrowException, OSError) as error:
            seen.problems.append(("parts", f"{name} cannot be read: {error}"))
        return seen

    def _look_into(self, part: Row, table: pa.Table, seen: PartSeen) -> None:
        name, index = part["part_name"], _whole(table, "row_index")
        if index.null_count or not ascends(index):
            seen.problems.append(("rows", f"{name}: row_index does not ascend"))
            index = index.drop_null().sort()
        seen.ranges, seen.rows = ranges_of(index), len(index)
        if tuple(seen.ranges) != from_multirange(part["rows"]).ranges:
            seen.problems.append(
                (
                    "rows",
                    f"{name} holds {len(index):,} rows that are not those of its batch "
                    f"{part['batch']} ({part['row_count']:,})",
                )
            )
        seen.errors = self._errors_of(table)
        counted = {
            # Rows that run again still have their old line, and are not counted meanwhile.
            "rows_failed": len(seen.errors) - part["redo_count"],
            "prompt_tokens": output_parts.column_sum(table, "prompt_tokens"),
            "output_tokens": output_parts.column_sum(table, "output_tokens"),
        }
        for what, count in counted.items():
            if count != part[what]:
                seen.problems.append(
                    (
                        "parts",
                        f"{name} holds {what} {count:,} and the ledger says {part[what]:,}",
                    )
                )
        self._compare_ids(part, table, seen)

    def _errors_of(self, table: pa.Table) -> list[tuple[int, str | None, str, str]]:
        failed = table.filter(pc.is_valid(table.column("error")))
        column = self._job.spec.input.id
        ids = to_list(failed.column(column)) if column else [None] * len(failed)
        return [
            (
                index,
                None if row_id is None else kept_message(str(row_id)),
                said["kind"],
                said["message"],
            )
            for index, row_id, said in zip(
                failed.column("row_index").to_pylist(),
                ids,
                failed.column("error").to_pylist(),
                strict=True,
            )
        ]

    def _compare_ids(self, part: Row, table: pa.Table, seen: PartSeen) -> None:
        """The ids of a part against those read again, where the source is still as planned."""
        column = self._job.spec.input.id
        if column is None:
            return
        try:
            again = part_files.read_input(
                self._job, part, from_multirange(part["rows"]), [column], self._cache
            )
        except SourceChanged:
            return
        mine = table.select(["row_index", column])
        # A row that cannot be read may have no id, nor has one whose batch never got so far.
        nameless = None if part["state"] == "dead" else again.bad.keys()
        strange = _differing(mine, again, column, nameless)
        if strange:
            seen.problems.append(
                ("ids", f"{part['part_name']}: the ids of rows {some(strange)} are not the input's")
            )
        seen.ids_compared = len(mine)

    def _settle(self, page: Sequence[Row], looked_at: Sequence[PartSeen]) -> list[PartSeen]:
        """Takes down the problems of parts, and compares their errors with the ledger's.

        A part of an open job may be moved or replaced while it is read: it is looked at once more,
        and one that the ledger does not name any longer has no problem.
        """
        settled: list[PartSeen] = []
        for part, first in zip(page, looked_at, strict=True):
            seen = first
            if seen.problems and not self._complete:
                seen = self._look_at(part) if self._is_live(part) else PartSeen()
            for check, message in seen.problems:
                self._checks[check].bad(message)
            self.facts[part["part_name"]] = facts_of(part)
            settled.append(seen)
        self._check_errors(settled)
        return settled

    def _is_live(self, part: Row) -> bool:
        with self._ledger.transaction() as connection:
            return audit.part_is_live(connection, self._job.id, part["part_name"])

    def _check_errors(self, seen: Sequence[PartSeen]) -> None:
        """The rows of a window that have an error, in the parts and in the ledger."""
        ranges = [one for part in seen for one in part.ranges]
        if not ranges:
            return
        first, stop = min(start for start, _ in ranges), max(stop for _, stop in ranges)
        with self._ledger.transaction() as connection:
            rows = audit.errors_between(connection, self._job.id, first, stop)
        theirs: dict[int, tuple[Any, ...]] = {row["row_index"]: tuple(row.values()) for row in rows}
        mine = {error[0]: error for part in seen for error in part.errors}
        inside = _inside(ranges, list(theirs)) if not self._complete else set(theirs)
        if only := sorted(mine.keys() - theirs.keys()):
            self._checks["row errors"].bad(
                f"rows {some(only)} failed, and the ledger does not say so"
            )
        if only := sorted((theirs.keys() & inside) - mine.keys()):
            self._checks["row errors"].bad(
                f"the ledger says that rows {some(only)} failed, and their parts do not"
            )
        differ = sorted(row for row in mine.keys() & theirs.keys() if mine[row] != theirs[row])
        if differ:
            self._checks["row errors"].bad(
                f"rows {some(differ)} carry another error in the part than in the ledger"
            )

    def _check_rows(self, ranges: list[Range], rows_total: int) -> None:
        check, seen = self._checks["rows"], cover(ranges, rows_total)
        if seen.doubled:
            check.bad(f"rows {some(shown(seen.doubled))} are in the output more than once")
        if seen.beyond:
            check.bad(f"rows {some(shown(seen.beyond))} are no rows of the dataset")
        if seen.missing and self._complete:
            check.bad(f"rows {some(shown(seen.missing))} are not in the output")


def _inside(ranges: Sequence[Range], rows: Sequence[int]) -> set[int]:
    """Those of ascending `rows` that lie in one of the ranges."""
    found: set[int] = set()
    ordered = iter(sorted(ranges))
    start, stop = next(ordered)
    for row in rows:
        while row >= stop:
            following = next(ordered, None)
            if following is None:
                return found
            start, stop = following
        if row >= start:
            found.add(row)
    return found


def _differing(
    mine: pa.Table, again: registry.Rows, column: str, nameless: Container[int] | None
) -> list[int]:
    """Row indices whose id is not the input's; rows in `nameless` (None: all) may have none."""
    if not again.bad:
        theirs = again.table.column(column)
        same = mine.column("row_index").to_pylist() == again.row_index
        if same and mine.column(column).equals(theirs):
            return []
    ids = dict(zip(again.row_index, to_list(again.table.column(column)), strict=True))
    ids |= zip(again.bad, to_list(again.bad_table.column(column)), strict=True)
    return [
        index
        for index, value in zip(
            *(to_list(mine.column(name)) for name in ("row_index", column)), strict=True
        )
        if value != ids.get(index)
        and not (value is None and (nameless is None or index in nameless))
    ]


def _whole(table: pa.Table, column: str) -> pa.Array:
    return (
        pa.concat_arrays(table.column(column).chunks)
        if table.num_rows
        else pa.array([], pa.int64())
    )
