"""Writes docs/job.schema.json and docs/judge.schema.json, which the examples name for editors.

Run by `make docs`.
"""

import sys
from pathlib import Path

from nightshift.common.spec.editor_schema import IDENTIFIERS, written_schema

DOCS = Path(__file__).parent


def page(kind: str) -> Path:
    """The file of a schema."""
    return DOCS / f"{kind}.schema.json"


def main() -> int:
    """Writes both; with --check, says by the exit code whether they are as they would be written."""
    stale = False
    for kind in IDENTIFIERS:
        new, file = written_schema(kind), page(kind)
        stale |= not file.exists() or file.read_text(encoding="utf-8") != new
        if "--check" not in sys.argv:
            file.write_text(new, encoding="utf-8")
    return int("--check" in sys.argv and stale)


if __name__ == "__main__":
    sys.exit(main())
