"""Where a part comes from: job, model, parameters, code, and the origin of kept answers."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nightshift.common.descriptor import RowRanges
from nightshift.common.spec import FunctionEngineSpec, JobSpec

PACKAGE = "nightshift-fleet"

GIT_SECONDS = 5.0

COMMIT_DIGITS = 12


@cache
def code_version() -> str:
    """The version of this code, such as `0.1.0+1f2e3d4c5b6a`: with the git commit, where known, and
    with `.dirty` at the end for a working tree that was changed.
    """
    try:
        found = distribution(PACKAGE)
    except PackageNotFoundError:
        return "unknown"
    # PEP 610: the origin of a package that was not installed from an index.
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id", "")[:COMMIT_DIGITS]
    if not commit and origin.get("dir_info", {}).get("editable"):
        commit = _commit_of(Path(unquote(urlsplit(origin["url"]).path)))
    return f"{found.version}+{commit}" if commit else found.version


def _commit_of(folder: Path) -> str:
    """The commit of a working tree; empty where git cannot tell, or the folder is part of another."""
    git = shutil.which("git")
    if git is None or not (folder / ".git").exists():
        return ""
    command = [git, "--no-optional-locks", "-C", str(folder), "describe", "--always"]
    command += [f"--abbrev={COMMIT_DIGITS}", "--dirty=.dirty", "--exclude=*"]
    try:
        result = subprocess.run(  # noqa: S603 - constants
            command, capture_output=True, text=True, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def model_of(spec: JobSpec) -> str:
    """The model as the spec names it, or the callable of a function."""
    engine = spec.engine
    return engine.callable if isinstance(engine, FunctionEngineSpec) else engine.model


def of_job(job_id: int, spec: JobSpec) -> dict[str, str]:
    """The facts of a job in the metadata of each of its parts."""
    return {
        "job": str(job_id),
        "job_name": spec.name,
        "model": model_of(spec),
        "spec_engine": spec.engine.model_dump_json(),
        "spec_task": spec.task.model_dump_json(),
        "code_version": code_version(),
    }


OF_JOB = frozenset({"job", "job_name", "model", "spec_engine", "spec_task"})
"""Keys with the same value in all parts of a job."""


def with_kept(own: Mapping[str, str], redone: RowRanges, kept: Mapping[str, str]) -> dict[str, str]:
    """The provenance of a part with rows of an older part, whose provenance is `kept`.

    `rows_redone` are the ranges of row indices that are new. All other rows come from the part that
    the field `kept` describes, as JSON, which may have a field `kept` itself.
    """
    older = {key: value for key, value in kept.items() if key not in OF_JOB}
    return {
        **own,
        "rows_redone": json.dumps([list(piece) for piece in redone.ranges]),
        "kept": json.dumps(older),
    }
