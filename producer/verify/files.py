"""Whether the output directory of a closed job holds what the ledger names, and nothing else."""

import json
from collections.abc import Mapping
from typing import Any

from nightshift.common import storage
from nightshift.common.errors import NightshiftError
from nightshift.common.formats.part_names import MANIFEST, final, staged
from nightshift.common.ledger.jobs import Job
from nightshift.common.text import first_few
from nightshift.producer.verify.checks import CheckResult
from nightshift.producer.verify.parts import Facts
from nightshift.producer.views.rates import Values


def check_files(
    job: Job, facts: Mapping[str, Facts], progress: Values, *, complete: bool
) -> CheckResult:
    """The directory must have no file that a reader would take for a part, no staged part, and a
    manifest that says what the ledger says.
    """
    # Readers of datasets pass over names that begin with a dot or an underscore.
    found = [name for name in storage.list_names(job.output_uri) if name[0] not in "._"]
    check = CheckResult("directory", f"{len(found):,} parts and their manifest, nothing else")
    if foreign := sorted(set(found) - facts.keys()):
        check.add(f"{job.output_uri} holds what the ledger does not name: {first_few(foreign)}")
    left = storage.list_names(staged(job.output_uri, ""))
    if left:
        check.add(f"{staged(job.output_uri, '')} is not empty: {first_few(sorted(left))}")
    for problem in _manifest_problems(job, facts, progress, complete):
        check.add(problem)
    return check


def _manifest_problems(
    job: Job, facts: Mapping[str, Facts], progress: Values, complete: bool
) -> list[str]:
    uri = final(job.output_uri, MANIFEST)
    try:
        with storage.open_input(uri) as file:
            manifest: dict[str, Any] = json.load(file, object_hook=_compared_keys)
    except (NightshiftError, OSError, ValueError) as error:
        return [f"{uri} cannot be read: {error}"]
    expected = {
        "job": job.id,
        "complete": complete,
        "rows": progress["rows_done"] + progress["rows_failed"],
        "rows_failed": progress["rows_failed"],
        "prompt_tokens": progress["prompt_tokens"],
        "output_tokens": progress["output_tokens"],
        "status": progress["status"],
    }
    problems = [
        f"{MANIFEST} says {name} {manifest.get(name)!r} and the ledger says {value!r}"
        for name, value in expected.items()
        if manifest.get(name) != value
    ]
    in_manifest = {
        part.get("name"): (part.get("rows"), part.get("bytes"), part.get("sha256"))
        for part in manifest.get("parts", [])
    }
    differ = sorted(
        str(name)
        for name in facts.keys() | in_manifest.keys()
        if facts.get(name) != in_manifest.get(name)
    )
    if differ:
        problems.append(f"{MANIFEST} and the ledger differ about {first_few(differ)}")
    return problems


def _compared_keys(entry: dict[str, Any]) -> dict[str, Any]:
    """Keeps of a part only what is compared: a manifest may name a million parts."""
    if "sha256" not in entry:
        return entry
    return {name: entry.get(name) for name in ("name", "rows", "bytes", "sha256")}
