"""How functions of `os` reach a local file. Links are followed, except links in the folders that we make in an
output directory, and links that lead out of the roots around a file (`walls.py`).

Such a file is reached folder by folder, and named relative to the open folder. So no link can take the place of
a folder between a check and the use.
"""

import errno
import os
import stat as modes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nightshift.common.errors import BadInput
from nightshift.common.public_text import private
from nightshift.common.storage import walls

OWN_FOLDERS = frozenset({"_attempts", "_generations", "_input", "_judged", "_ledger"})
"""Folders that we make in an output directory. A link in place of one, or in one, is not followed."""


NO_FILE = "{} is no regular file: copy its content into one"


@dataclass(frozen=True, slots=True)
class Place:
    """A file: its path, or its name in the open `folder`, where a link under the name is no file."""

    name: str
    folder: int | None = None

    def opener(self, *, links: bool = True) -> Callable[[str, int], int]:
        """For the opener of `open`; OSError for a link in a folder of ours, or without `links`, BadInput for
        a pipe, a socket and a device, which may have taken the place of a file: an open that waits for
        the other end of a pipe would hold its thread for ever.
        """
        no_follow = 0 if links and self.folder is None else os.O_NOFOLLOW

        def opened(name: str, flags: int) -> int:
            how = flags | no_follow | os.O_NONBLOCK
            try:
                file = os.open(name, how, 0o666, dir_fd=self.folder)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
                    raise BadInput(NO_FILE.format(name)) from error
                raise
            kind = os.fstat(file).st_mode
            if not modes.S_ISREG(kind) and not modes.S_ISDIR(kind):  # `open` refuses a directory
                os.close(file)
                raise BadInput(NO_FILE.format(name))
            os.set_blocking(file, True)
            return file

        return opened

    def stat(self, *, links: bool = True) -> os.stat_result:
        """The facts of a file; of a link itself in a folder of ours, or without `links`."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=links and self.folder is None)

    def rename(self, new: "Place") -> None:
        """Gives the file another name, in place of what has the name; a link is renamed itself."""
        os.rename(self.name, new.name, src_dir_fd=self.folder, dst_dir_fd=new.folder)

    def link(self, new: "Place") -> None:
        """Gives the file a further name; FileExistsError where the name is taken."""
        os.link(self.name, new.name, src_dir_fd=self.folder, dst_dir_fd=new.folder)

    def unlink(self) -> None:
        """Removes the file, or the link itself."""
        os.unlink(self.name, dir_fd=self.folder)

    def remove_folder(self) -> None:
        """Removes an empty folder."""
        os.rmdir(self.name, dir_fd=self.folder)

    def beside(self, job_id: int | None = None) -> "Place":
        """A hidden name in the same folder that nobody else takes; it carries the number of a job, if one is
        given (`unfinished.NAME`).
        """
        folder, name = os.path.split(self.name)
        job = "" if job_id is None else f".job{job_id}"
        return Place(str(Path(folder, f".{name}{job}.{os.urandom(6).hex()}")), self.folder)


@contextmanager
def placed(path: Path, *, links: bool = True) -> Iterator[Place]:
    """Where a file is; without `links` what is done is done to a link under its name, not to what the
    link leads to. BadInput where a link stands in place of its folder, if the folder is ours, and for
    what lies outside a wall.
    """
    around = walls.around(path)
    if path.parent.name in OWN_FOLDERS:
        folder = _own_folder(path.parent, os.O_PATH, around)
        name = path.name
    elif around:
        found = walls.walk(path, around, links=links)
        folder, name = found.folder, found.name
    else:
        yield Place(str(path))
        return
    try:
        yield Place(name, folder)
    finally:
        os.close(folder)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A directory, open to be listed or synced. NotADirectoryError for what is none, BadInput for a link
    in place of a folder of ours and for what lies outside a wall.
    """
    around = walls.around(path)
    if path.name in OWN_FOLDERS:
        folder = _own_folder(path, os.O_RDONLY, around)
    else:
        with placed(path) as place:
            no_follow = 0 if place.folder is None else os.O_NOFOLLOW
            flags = os.O_RDONLY | os.O_DIRECTORY | no_follow
            folder = os.open(place.name, flags, dir_fd=place.folder)
    try:
        yield folder
    finally:
        os.close(folder)


def names(path: Path) -> list[str]:
    """Names of all that is directly in a directory; BadInput for a link in place of one of ours."""
    with opened(path) as folder:
        return os.listdir(folder)  # noqa: PTH208


def make(path: Path, made: Callable[[int], None]) -> None:
    """Makes a folder and those around it, held to the walls around it. `made` is given each open folder
    that got a new name.
    """

    def make_one(folder: int, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
            made(folder)

    is_ours = path.name in OWN_FOLDERS  # a link in its place is refused when it is opened
    way = walls.walk(path.parent if is_ours else path, walls.around(path), make=make_one)
    try:
        if is_ours:
            make_one(way.folder, path.name)
    finally:
        os.close(way.folder)


def _own_folder(path: Path, flags: int, around: Sequence[walls.Wall]) -> int:
    """A descriptor of a folder of ours, which the caller closes."""
    flags |= os.O_DIRECTORY | os.O_NOFOLLOW
    if not around:
        place = Place(str(path))
    else:
        found = walls.walk(path, around, links=False)
        place = Place(found.name, found.folder)
    try:
        return os.open(place.name, flags, dir_fd=place.folder)
    except NotADirectoryError as error:
        if not modes.S_ISLNK(place.stat(links=False).st_mode):
            raise
        raise BadInput(
            f"{private(path)} is a link, and links in an output directory are not followed: put a folder "
            "in its place"
        ) from error
    finally:
        if place.folder is not None:
            os.close(place.folder)


@contextmanager
def plainly_opened(path: Path) -> Iterator[int]:
    """A directory, open as the system opens it, whatever walls there are."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)
