"""Rooms and files stay small enough to be read. A room is divided where its purpose divides: these bounds
are wide, and only say when somebody has to look.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

MOST_LINES = 450
MOST_FILES = 20


def rooms() -> Iterator[Path]:
    """Every folder of the product that holds code, without the migrations, of which a step is a file."""
    for top in ("common", "producer", "worker"):
        for folder in (ROOT / top, *(ROOT / top).rglob("*")):
            if (folder / "__init__.py").is_file() and folder.name != "versions":
                yield folder


@pytest.mark.parametrize("room", list(rooms()), ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_has_few_files_and_none_is_long(room: Path) -> None:
    files = [path for path in room.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_FILES
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
