"""Which files of an input are new, changed or gone since a job was planned: a pure comparison."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nightshift.common.ledger.jobs.watches import Facts, UnplannedFile
from nightshift.common.storage import FileInfo


@dataclass(frozen=True, slots=True)
class Changes:
    """Files that differ from those of a job; every list is sorted by uri."""

    new: list[FileInfo] = field(default_factory=list)
    changed: list[FileInfo] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    @property
    def uris(self) -> list[str]:
        """Every file that differs."""
        return sorted([*(info.uri for info in (*self.new, *self.changed)), *self.gone])


def changes(
    listed: Iterable[FileInfo], planned: Mapping[str, Facts], elsewhere: Collection[str] = ()
) -> Changes:
    """Compares the files that an input has now with those that a job has planned.

    Files `elsewhere` were named by a command: the listing need not have them.
    """
    found, uris = Changes(), set[str]()
    for info in listed:
        uris.add(info.uri)
        facts = planned.get(info.uri)
        if facts is None:
            found.new.append(info)
        elif facts != (info.size, info.fingerprint):
            found.changed.append(info)
    found.gone.extend(sorted(uri for uri in planned if uri not in uris and uri not in elsewhere))
    found.new.sort(key=lambda info: info.uri)
    found.changed.sort(key=lambda info: info.uri)
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a watched input comes to: files to plan now, and files that are noted."""

    ripe: list[FileInfo]
    noted: dict[str, UnplannedFile]


def judge_look(
    now: datetime, every_seconds: float, found: Changes, before: Mapping[str, UnplannedFile]
) -> Look:
    """What to do with the files that differ, seen at `now`; `before` is what earlier looks noted.

    A new file is planned after two equal looks that lie `every_seconds` apart: one that is still
    being written differs. A refused file stays so until it changes.
    """
    ripe: list[FileInfo] = []
    noted: dict[str, UnplannedFile] = {}
    apart = timedelta(seconds=every_seconds)
    for info in found.new:
        known = before.get(info.uri)
        same = known is not None and known.facts == (info.size, info.fingerprint)
        if known is not None and same and known.state == "refused":
            noted[info.uri] = known
        elif known is not None and same and known.state == "waiting":
            if now - known.seen_at >= apart:
                ripe.append(info)
            noted[info.uri] = known
        else:
            noted[info.uri] = UnplannedFile(info.uri, info.size, info.fingerprint, "waiting", now)
    for info in found.changed:
        noted[info.uri] = UnplannedFile(info.uri, info.size, info.fingerprint, "changed", now)
    for uri in found.gone:
        noted[uri] = UnplannedFile(uri, 0, "", "gone", now)
    return Look(ripe, noted)
