"""A watched job in words: how it waits for files, what its looks found, and how its watch ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nightshift.common.ledger import Connection
from nightshift.common.ledger.jobs import generations, messages, watches
from nightshift.common.ledger.jobs.watches import UnplannedFile
from nightshift.common.text import counted

MOST_FILES = 3
"""Files of each kind that a page names."""


@dataclass(frozen=True, slots=True)
class Watching:
    """The row of watch_status of a job, some files that are not as planned, how many new files exceed the
    tenant's limit, and how many generations the job has and has finished.
    """

    row: Mapping[Any, Any]
    files: Sequence[UnplannedFile]
    without_room: int
    generations: int
    finished: int

    @property
    def is_idle(self) -> bool:
        """Whether everything that was found so far is done and readers can follow all of it."""
        waits = self.row["waiting_for_files"] and not self.row["files_waiting"]
        return bool(waits and self.finished == self.generations)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "every_seconds": self.row["every_seconds"],
            "looked_at": self.row["looked_at"] and self.row["looked_at"].isoformat(),
            "waiting_for_files": self.row["waiting_for_files"],
            "error": self.row["error"],
            "generations": self.generations,
            "generations_finished": self.finished,
            **{name: self.row[f"files_{name}"] for name in ("listed", *STATES)},
        }


STATES = ("waiting", "refused", "changed", "gone")


def watching(connection: Connection, job_id: int, tenant: str | None = None) -> Watching | None:
    """What is known of the watch of a job, as a reader of a `tenant` may see it; None for a job that nobody watches."""
    row: Mapping[Any, Any] | None = watches.status(connection, job_id)
    if row is None:
        return None
    without_room, waiting = watches.without_room(connection, job_id, MOST_FILES)
    files = waiting + [
        file
        for state in ("refused", "changed", "gone")
        if row[f"files_{state}"]
        for file in watches.unplanned(connection, job_id, state, MOST_FILES)
    ]
    number, finished = generations.counts(connection, job_id)
    if tenant is None:
        whole = messages.whole(connection, job_id)
        row = whole.row(row, "error")
        files = [replace(file, why=whole.text(file.why)) for file in files]
    return Watching(row, files, without_room, number, finished)


def lines(found: Watching) -> list[str]:
    """What a person should know, one sentence a line; the first says what the job waits for."""
    row = found.row
    every = _seconds(row["every_seconds"])
    if row["waiting_for_files"]:
        first = f"every row so far is done; waits for files, looks every {every}"
    else:
        first = f"watches its input, looks every {every}"
    if row["looked_at"] is not None:
        first += f" ({_files(row['files_listed'])} at {row['looked_at'].astimezone():%H:%M:%S})"
    said = [first]
    if count := row["files_waiting"] - found.without_room:
        said.append(f"{_files(count)} pending: planned if unchanged at the next check")
    if row["error"] is not None:
        said.append(f"the last look came to nothing: {row['error']}")
    said += [_sentence(file) for file in found.files]
    counts = {each: row[f"files_{each}"] for each in ("refused", "changed", "gone")}
    for state, count in {"waiting": found.without_room, **counts}.items():
        if (more := count - MOST_FILES) > 0:
            said.append(f"{_files(more)} more: {state}")
    return said


def how_to_end(job_id: int) -> str:
    """The commands that end a watch."""
    return (
        f"`nightshift submit --append {job_id} --last` takes what is there and ends the watch, "
        f"`nightshift cancel {job_id}` ends the job"
    )


def _sentence(file: UnplannedFile) -> str:
    if file.state == "waiting":
        return f"waits: {file.why}"
    if file.state == "refused":
        return f"refused: {file.why}"
    if file.state == "gone":
        return f"gone since it was planned: {file.uri}"
    return (
        f"changed since it was planned, and left as it was: {file.uri}; the spec of the job, submitted with --new and "
        "another output directory, runs its rows again"
    )


def _files(count: int) -> str:
    return counted(count, "file")


def _seconds(seconds: int) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
