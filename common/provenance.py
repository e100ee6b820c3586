"""Where a part comes from: job, model, parameters, code, and whose answers were kept."""

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
    """The version of this code, such as `0.1.0`, with the git commit it was installed from where
    that is known: `0.1.0+1f2e3d4c5b6a`, and `.dirty` behind it in a working tree that was changed.
    """
    try:
        found = distribution(PACKAGE)
    except PackageNotFoundError:
        return "unknown"
    # PEP 610: where an installer got it from, if not from an index.
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id", "")[:COMMIT_DIGITS]
    if not commit and origin.get("dir_info", {}).get("editable"):
        commit = _commit_of(Path(unquote(urlsplit(origin["url"]).path)))
    return f"{found.version}+{commit}" if commit else found.version


def _commit_of(folder: Path) -> str:
    """The commit of a working tree; empty where git cannot tell, or it belongs to another one."""
    git = shutil.which("git")
    if git is None or not (folder / ".git").exists():
        return ""
    asked = [git, "--no-optional-locks", "-C", str(folder), "describe", "--always"]
    asked += [f"--abbrev={COMMIT_DIGITS}", "--dirty=.dirty", "--exclude=*"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def model_of(spec: JobSpec) -> str:
    """The model as the spec names it; of a function the callable."""
    engine = spec.engine
    return engine.callable if isinstance(engine, FunctionEngineSpec) else engine.model


def of_job(job_id: int, spec: JobSpec) -> dict[str, str]:
    """What every part says of its job, for the metadata of a file."""
    return {
        "job": str(job_id),
        "job_name": spec.name,
        "model": model_of(spec),
        "spec_engine": spec.engine.model_dump_json(),
        "spec_task": spec.task.model_dump_json(),
        "code_version": code_version(),
    }


OF_JOB = frozenset({"job", "job_name", "model", "spec_engine", "spec_task"})
"""Keys that are the same in all parts of a job."""


def with_kept(
    mine: Mapping[str, str], redone: RowRanges, kept: Mapping[str, str]
) -> dict[str, str]:
    """The provenance of a part that took over rows of an older part, whose own is `kept`.

    `rows_redone` are the ranges of row indices whose line is new; all others stand as `kept`
    (JSON, which may hold a `kept` itself) says.
    """
    older = {key: value for key, value in kept.items() if key not in OF_JOB}
    return {
        **mine,
        "rows_redone": json.dumps([list(piece) for piece in redone.ranges]),
        "kept": json.dumps(older),
    }
