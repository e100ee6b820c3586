"""The versions of the engine, its model and a function's code that made the rows of a job, in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.common.ledger import Connection
from nightshift.common.ledger.engines import engine_versions
from nightshift.common.ledger.engines.engine_versions import Version
from nightshift.common.text import first_few, one_line
from nightshift.producer.views.fact import Fact
from nightshift.producer.views.rates import Values

HOW_TO_UNIFY = "`--new` with another `--out` runs all rows with one version"

SHORT = 8
"""Characters of a digest or a revision that a sentence shows."""

MOST_NAMED = 5
"""Versions that a sentence names, the last ones."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a job, in the order in which they were first used."""

    found: Sequence[Version]

    @property
    def as_json(self) -> list[dict[str, Any]]:
        """The list `versions` of the manifest and of `status JOB --json`."""
        return [each.as_json for each in self.found]

    @property
    def fact(self) -> Fact | None:
        """The remark as a fact."""
        text = self.text
        return None if text is None else Fact("versions", text, warns=True)

    @property
    def text(self) -> str | None:
        """Return a remark with the rows of each version and the way to have one version; only if there are several."""
        counts = by_version(self.found)
        return f"rows by version of {counts}; {HOW_TO_UNIFY}" if counts else None


def versions(connection: Connection, job_id: int) -> Versions:
    """The versions that made rows of the live parts of a job."""
    return Versions(engine_versions.of_job(connection, job_id))


def with_versions(connection: Connection, row: Values) -> dict[Any, Any]:
    """A row of job_progress with its `versions`."""
    return {**row, "versions": versions(connection, row["job"])}


def by_version(found: Sequence[Version]) -> str | None:
    """What differs between versions, and the rows of each, as `rules.py: 250,000 of 3f2a91c0 (first used …), …`; None
    if there is one version or none.
    """
    if len(found) < 2:
        return None
    differing = _differing(found)
    shown = found[-MOST_NAMED:]
    counts = [
        f"{each.rows:,} of {' '.join(label(each) for label in differing.values())} "
        f"(first used {each.first_used_at.astimezone():%Y-%m-%d %H:%M})"
        for each in shown
    ]
    if earlier := found[:-MOST_NAMED]:
        rows = sum(each.rows for each in earlier)
        counts.insert(0, f"{rows:,} of {len(earlier):,} earlier versions")
    return f"{' and '.join(differing)}: {', '.join(counts)}"


def _differing(found: Sequence[Version]) -> Mapping[str, Callable[[Version], str]]:
    """What differs between versions, and what a sentence shows of it for each."""
    differing: dict[str, Callable[[Version], str]] = {}
    names = sorted({name for each in found for name in each.code})
    files = [name for name in names if len({each.code.get(name) for each in found}) > 1]
    if files:
        differing[one_line(first_few(files, 3))] = lambda each: _code(each, files)
    if len({(each.engine, each.engine_version) for each in found}) > 1:
        differing["the engine"] = lambda each: f"{each.engine} {each.engine_version}"
    if len({each.revision for each in found}) > 1:
        differing["the model"] = lambda each: (each.revision or "no revision")[:SHORT]
    return differing


def _code(version: Version, files: Sequence[str]) -> str:
    """The digests of the files that differ, one for all of them if there are several."""
    return "+".join((version.code.get(name) or "none")[:SHORT] for name in files[:3])
