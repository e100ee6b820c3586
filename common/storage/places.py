"""Where a local file is, for the functions of `os`: links are followed, but for those that somebody
put into an output directory.

A folder of ours is opened once, and a file in it is named relative to the open folder. So no link
can take the place of the folder between a check and the use.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nightshift.common.errors import BadInput

OWN_FOLDERS = frozenset({"_attempts", "_generations", "_input", "_judged", "_ledger"})
"""Folders that we make in an output directory. A link in place of one, or in one, is not followed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file: its path, or its name in the folder of ours that is open as `folder`."""

    name: str
    folder: int | None = None

    def opener(self, *, links: bool = True) -> Callable[[str, int], int]:
        """For the opener of `open`; OSError for a link in a folder of ours, or without `links`."""
        no_follow = 0 if links and self.folder is None else os.O_NOFOLLOW
        return lambda name, flags: os.open(name, flags | no_follow, 0o666, dir_fd=self.folder)

    def stat(self, *, links: bool = True) -> os.stat_result:
        """The facts of a file; of a link itself in a folder of ours, or without `links`."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=links and self.folder is None)

    def rename(self, new: "Place") -> None:
        """Gives the file another name, in place of what has the name; a link is renamed itself."""
        os.rename(self.name, new.name, src_dir_fd=self.folder, dst_dir_fd=new.folder)

    def unlink(self) -> None:
        """Removes the file, or the link itself."""
        os.unlink(self.name, dir_fd=self.folder)

    def beside(self) -> "Place":
        """A hidden name in the same folder that nobody else takes."""
        folder, name = os.path.split(self.name)
        return Place(str(Path(folder, f".{name}.{os.urandom(6).hex()}")), self.folder)


@contextmanager
def placed(path: Path) -> Iterator[Place]:
    """Where a file is; BadInput where a link stands in place of its folder, if the folder is ours."""
    if path.parent.name not in OWN_FOLDERS:
        yield Place(str(path))
        return
    folder = _own_folder(path.parent, os.O_PATH)
    try:
        yield Place(path.name, folder)
    finally:
        os.close(folder)


def names(path: Path) -> list[str]:
    """Names of all that is directly in a directory; BadInput for a link in place of one of ours."""
    if path.name not in OWN_FOLDERS:
        return [child.name for child in path.iterdir()]
    folder = _own_folder(path, os.O_RDONLY)
    try:
        return os.listdir(folder)  # noqa: PTH208
    finally:
        os.close(folder)


def _own_folder(path: Path, flags: int) -> int:
    """A descriptor of a folder of ours, which the caller closes."""
    try:
        return os.open(path, flags | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        if not path.is_symlink():
            raise
        raise BadInput(
            f"{path} is a link, and links in an output directory are not followed: put a folder "
            "in its place"
        ) from error
