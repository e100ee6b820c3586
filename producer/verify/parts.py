"""Whether the parts hold each row once, with the ids, errors and counts that the ledger says."""

from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import NightshiftError, SourceChanged
from nightshift.common.formats import input_rows, part_names, part_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import audit, failed_rows, live_parts
from nightshift.common.system_errors import told
from nightshift.common.text import counted, first_few, kept_message, plural
from nightshift.producer.external_sort.repeats import RepeatCount, Repeats
from nightshift.producer.external_sort.spill import spill_folder
from nightshift.producer.results import part_files
from nightshift.producer.verify.check_result import CheckResult, Problem

READERS = 4
READ_BYTES = 256 * 2**20

Facts = tuple[int, int, str]
"""Rows, bytes and SHA-256 of a part."""

Range = tuple[int, int]
"""Half-open: the first row index, and the one after the last."""


@dataclass(slots=True)
class PartContent:
    """What was read of one part, and the problems found in it."""

    ranges: list[Range] = field(default_factory=list)
    errors: list[tuple[int, str | None, str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    is_gone: bool = False
    ids_compared: int = 0
    ids_of_copy: int = 0
    ids: tuple[list[int], pa.ChunkedArray] | None = None

    def problem(self, check: str, message: str) -> None:
        """Adds a problem to the check of this name."""
        self.problems.append(Problem(check, message))


class PartsAudit:
    """One pass over the parts of a job.

    `complete` says that every row must be in a part; else some may still be missing. `facts` has
    the ledger's facts of every part, by name, once the checks are made.
    """

    def __init__(self, ledger: Ledger, job: Job, *, complete: bool) -> None:
        self._ledger = ledger
        self._job = job
        self._complete = complete
        self._cache = ReadCache(READ_BYTES)
        self.facts: dict[str, Facts] = {}
        self._gone = 0
        self._checks = {name: CheckResult(name) for name in ("parts", "rows", "ids", "row errors")}

    def checks(self) -> Iterator[CheckResult]:
        """Reads every part, and says what holds of parts, rows, ids and row errors."""
        wanted = self._wanted()
        stop_row, rows_total = len(wanted), int(np.count_nonzero(wanted))
        held = np.zeros(stop_row, np.uint8)
        strange: list[Range] = []
        compared = of_copy = failed = size = rows = 0
        with spill_folder() as folder, ThreadPoolExecutor(READERS) as readers:
            repeat_count = RepeatCount(folder)
            for page in part_files.pages(self._ledger, self._job):
                for content in self._take(page, list(readers.map(self._read, page))):
                    for start, stop in content.ranges:
                        held[start : min(stop, stop_row)] += 1
                        strange.append((max(start, stop_row), stop))
                        rows += stop - start
                    strange = [pair for pair in strange if pair[0] < pair[1]]
                    compared += content.ids_compared
                    of_copy += content.ids_of_copy
                    if content.ids is not None:
                        repeat_count.add(*content.ids)
                    failed += len(content.errors)
                size += sum(part["part_bytes"] for part in page)
            repeats = repeat_count.result()
        if self._gone:
            self._checks["parts"].add(
                f"{counted(self._gone, 'part')} {plural(self._gone, 'is', 'are')} gone: {part_files.way_back(self._job)}"
            )
        self._check_rows(held, wanted, RowRanges.of(*strange))
        self._check_error_count(failed)
        if self._job.spec.input.unique_id and repeats.repeated:
            self._checks["ids"].add(f"ids must differ (input.unique_id): {self._example(repeats)}")
        summaries = {
            "parts": f"{counted(len(self.facts), 'part')}, {counted(size, 'byte')}, each with its size and checksum",
            "rows": f"{rows:,} of {counted(rows_total, 'row')}, each once",
            "ids": f"{compared:,} ids equal those of the input"
            + (f", {of_copy:,} of them in its sorted copy" if of_copy else "")
            + self._said_of(repeats),
            "row errors": f"the same in parts and ledger: {failed:,}",
        }
        for name, check in self._checks.items():
            check.summary = summaries[name]
            yield check

    def _said_of(self, repeats: Repeats) -> str:
        """The result of counting the ids of the output, as the end of a sentence; empty for a job without ids."""
        if self._job.spec.input.id is None:
            return ""
        said = "; no id stands in two rows"
        if repeats.pair is not None:
            said = f"; {repeats.different:,} of {repeats.rows:,} differ: {self._example(repeats)}"
        return said + (
            f"; {counted(repeats.without, 'row')} {plural(repeats.without, 'has', 'have')} no id"
            if repeats.without
            else ""
        )

    def _example(self, repeats: Repeats) -> str:
        assert repeats.pair is not None
        first, second = repeats.pair
        value = part_files.id_of(self._ledger, self._job, first)
        return (
            f"{value} stands in rows {first:,} and {second:,}, and {counted(repeats.repeated, 'row')} {plural(repeats.repeated, 'repeats', 'repeat')} the "
            "id of an earlier one"
        )

    def _read(self, part: Row) -> PartContent:
        content = PartContent()
        name = part["part_name"]
        uri = part_names.located(self._job.output_uri, name)
        if uri is None:
            content.is_gone = True
            content.problem("parts", f"{name} does not exist")
            return content
        try:
            size = storage.stat(uri).size
            if size != part["part_bytes"]:
                content.problem(
                    "parts", f"{name} has {counted(size, 'byte')} and not {part['part_bytes']:,}"
                )
            elif storage.checksum(uri) != part["part_checksum"]:
                content.problem("parts", f"{name} does not match its checksum")
            self._compare(part, part_files.read(self._job, name, uri), content)
        except (NightshiftError, pa.ArrowException, OSError) as error:
            content.problem("parts", f"{name} cannot be read: {told(error)}")
        return content

    def _compare(self, part: Row, table: pa.Table, content: PartContent) -> None:
        name, column = part["part_name"], table.column("row_index")
        index = column.drop_null().to_numpy()
        if column.null_count or not (np.diff(index) > 0).all():
            content.problem("rows", f"{name}: row_index does not ascend")
            index = np.sort(index)
        content.ranges = _ranges_of(index)
        if tuple(content.ranges) != part["rows"].ranges:
            content.problem(
                "rows",
                f"{name} holds {counted(len(index), 'row')} that are not those of its batch "
                f"{part['batch']} ({part['row_count']:,})",
            )
        content.errors = self._errors_of(table)
        sums = {
            # Rows that run again still have their old line, and are not counted meanwhile.
            "rows_failed": len(content.errors) - part["redo_count"],
            "prompt_tokens": part_rows.column_sum(table, "prompt_tokens"),
            "output_tokens": part_rows.column_sum(table, "output_tokens"),
        }
        for what, count in sums.items():
            if count != part[what]:
                content.problem(
                    "parts", f"{name} holds {what} {count:,} and the ledger says {part[what]:,}"
                )
        self._compare_ids(part, table, content)

    def _errors_of(self, table: pa.Table) -> list[tuple[int, str | None, str, str]]:
        """Read here and not by the code that the commit used: an error there shows up here."""
        failed = table.filter(pc.is_valid(table.column("error")))
        column = self._job.spec.input.id
        ids = to_list(failed.column(column)) if column else [None] * len(failed)
        return [
            (
                index,
                None if row_id is None else kept_message(str(row_id)),
                error["kind"],
                error["message"],
            )
            for index, row_id, error in zip(
                failed.column("row_index").to_pylist(),
                ids,
                failed.column("error").to_pylist(),
                strict=True,
            )
        ]

    def _compare_ids(self, part: Row, table: pa.Table, content: PartContent) -> None:
        """The ids of a part must be those of the input, where the source is still as planned. Rows of an
        arranged job are read from the sorted copy, as the worker did: in the files they lie apart.
        """
        column = self._job.spec.input.id
        if column is None:
            return
        content.ids = (table.column("row_index").to_pylist(), table.column(column))
        try:
            source = part_files.read_input(self._job, part, part["rows"], [column], self._cache)
        except SourceChanged:
            return
        # A row that cannot be read may have no id, nor has a row of a batch that was never read.
        may_lack_id = None if part["state"] == "dead" else source.bad.keys()
        rows = table.select(["row_index", column])
        if differing := _rows_of_other_id(rows, source, column, may_lack_id):
            content.problem(
                "ids",
                f"{part['part_name']}: the ids of rows {first_few(differing)} are not "
                + ("the input's" if part["arranged"] is None else "those of its sorted copy"),
            )
        content.ids_compared = len(rows)
        content.ids_of_copy = 0 if part["arranged"] is None else len(rows)

    def _take(self, page: Sequence[Row], contents: Sequence[PartContent]) -> list[PartContent]:
        """Adds the problems of parts to their checks, and compares their errors with the ledger's.

        A part of an open job may be moved or replaced while it is read. A part with a problem is
        then read once more, and a part that the ledger no longer names has no problem.
        """
        taken: list[PartContent] = []
        for part, first in zip(page, contents, strict=True):
            content = first
            if content.problems and not self._complete:
                with self._ledger.transaction() as connection:
                    live = live_parts.part_is_live(connection, self._job.id, part["part_name"])
                content = self._read(part) if live else PartContent()
            self._gone += content.is_gone
            for problem in content.problems:
                self._checks[problem.check].add(problem.message)
            self.facts[part["part_name"]] = (
                part["row_count"],
                part["part_bytes"],
                part["part_checksum"],
            )
            taken.append(content)
        self._check_errors(page, taken)
        return taken

    def _check_errors(self, page: Sequence[Row], contents: Sequence[PartContent]) -> None:
        """The rows of these parts that have an error, in the parts and in the ledger."""
        with self._ledger.transaction() as connection:
            found = failed_rows.in_parts(connection, [part["batch"] for part in page])
        listed: dict[int, tuple[Any, ...]] = {
            row["row_index"]: tuple(row.values()) for row in found
        }
        carried = {error[0]: error for content in contents for error in content.errors}
        only_listed = listed.keys() - carried.keys()
        if not self._complete:  # of a part that is no longer live nothing was kept
            held = [pair for content in contents for pair in content.ranges]
            only_listed &= {row for start, stop in held for row in range(start, stop)}
        wrong = {
            "rows {} failed, and the ledger does not say so": carried.keys() - listed.keys(),
            "the ledger says that rows {} failed, and their parts do not": only_listed,
            "rows {} carry another error in the part than in the ledger": {
                row for row in carried.keys() & listed.keys() if carried[row] != listed[row]
            },
        }
        for sentence, found_rows in wrong.items():
            if found_rows:
                self._checks["row errors"].add(sentence.format(first_few(sorted(found_rows))))

    def _check_error_count(self, carried: int) -> None:
        """No error in the ledger is one of a batch without a part."""
        if not self._complete:
            return
        with self._ledger.transaction() as connection:
            listed = failed_rows.count_in_parts(connection, self._job.id)
        if listed > carried:
            self._checks["row errors"].add(
                f"the ledger has {listed:,} row errors, and the parts have {carried:,}"
            )

    def _wanted(self) -> "np.ndarray[Any, Any]":
        """Whether each row of the dataset is one of the job: by its batches where it has a condition."""
        with self._ledger.transaction() as connection:
            if self._job.spec.input.where is None:
                return np.ones(jobs.progress(connection, self._job.id)["rows_total"], np.bool_)
            wanted = np.zeros(generations.end(connection, self._job.id).row, np.bool_)
            for rows in audit.rows_of_batches(connection, self._job.id):
                for start, stop in rows.ranges:
                    wanted[start:stop] = True
        return wanted

    def _check_rows(
        self, held: "np.ndarray[Any, Any]", wanted: "np.ndarray[Any, Any]", strange: RowRanges
    ) -> None:
        """`held` says of each row of the dataset in how many places it stands."""
        wrong = {
            "are left out by input.where": _rows_where((held > 0) & ~wanted),
            "are in the output more than once": _rows_where(held > 1),
            "are no rows of the dataset": strange,
        }
        if self._complete:
            wrong["are not in the output"] = _rows_where((held == 0) & wanted)
        for what, rows in wrong.items():
            if rows:
                self._checks["rows"].add(f"rows {first_few(_as_texts(rows))} {what}")


def _rows_where(found: "np.ndarray[Any, Any]") -> RowRanges:
    return RowRanges(tuple(_ranges_of(np.flatnonzero(found))))


def _ranges_of(index: "np.ndarray[Any, Any]") -> list[Range]:
    """Ranges of ascending row indices; a repeated index begins a new range.

    A million rows are a few thousand ranges.
    """
    starts = index[np.diff(index, prepend=index[:1] - 2) != 1]
    stops = index[np.diff(index, append=index[-1:] + 2) != 1] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _as_texts(rows: RowRanges) -> list[str]:
    """Ranges for people: `7` or `7 to 12`, both ends counted."""
    return [
        str(start) if stop - start == 1 else f"{start} to {stop - 1}" for start, stop in rows.ranges
    ]


def _rows_of_other_id(
    part: pa.Table, source: input_rows.Rows, column: str, may_lack_id: Container[int] | None
) -> list[int]:
    """Row indices whose id is not the input's; rows in `may_lack_id` (None: all) may have none."""
    if not source.bad:
        same = part.column("row_index").to_pylist() == source.row_index
        if same and part.column(column).equals(source.table.column(column)):
            return []
    ids = dict(zip(source.row_index, to_list(source.table.column(column)), strict=True))
    ids |= zip(source.bad, to_list(source.bad_table.column(column)), strict=True)
    return [
        index
        for index, value in zip(
            *(to_list(part.column(name)) for name in ("row_index", column)), strict=True
        )
        if value != ids.get(index)
        and not (value is None and (may_lack_id is None or index in may_lack_id))
    ]
