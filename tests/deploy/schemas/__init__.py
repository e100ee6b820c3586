"""Schemas of objects that Kubernetes itself does not know; README.md says where they are from."""

import json
from pathlib import Path
from typing import Any

CUSTOM = {
    path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("*.json"))
}


def schema_of(thing: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a custom object, by kind, group and version; None when there is none."""
    group, _, version = thing["apiVersion"].partition("/")
    found: dict[str, Any] | None = CUSTOM.get(
        f"{thing['kind'].lower()}-{group.partition('.')[0]}-{version}"
    )
    return found
