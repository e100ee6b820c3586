"""The name of a job that nobody named."""

import re
from pathlib import PurePosixPath


def job_name(target: str) -> str:
    """A job's name made of its input: the last part of the path that is no glob, without suffix."""
    parts = [part for part in PurePosixPath(target).parts if not re.search(r"[*?\[\]{}]", part)]
    stem = PurePosixPath(parts[-1]).stem if parts else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-_")[:63]
    return f"job-{name}"[:63].rstrip("-") if not name or name.isdigit() else name
