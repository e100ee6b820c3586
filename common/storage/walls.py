"""Walls: the roots that local files are held to where they are opened, whatever a name says.

A wall stands around what one thread does (`within`), or around all that lies in one output directory
(`keep_within`), whoever opens it in this process. `walk` goes to a file folder by folder, by handles: it
follows links itself, so nothing that is renamed or replaced meanwhile leads it elsewhere.
"""

import errno
import os
import stat as modes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from nightshift.common.errors import BadInput
from nightshift.common.storage.addresses import check_held, is_local, local_path, outside, resolve

OF_JOB = "the job may use"
"""Who names the roots under which a job was admitted and that its tenant still has."""

MOST_LINKS = 40
"""Links on the way to one file; the kernel of Linux takes as many."""

_INTO = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

P = ParamSpec("P")
T = TypeVar("T")

Identity = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class Wall:
    """Roots, below one of which a file must lie, and who names them."""

    roots: tuple[str, ...]
    said: str

    def refusal(self, path: object) -> BadInput:
        """The error for a file outside."""
        return outside(path, self.roots, self.said)

    def identities(self) -> frozenset[Identity]:
        """Its local roots as they are now. A root itself may be a link: it is the operator's."""
        found = set()
        for root in filter(is_local, self.roots):
            with suppress(OSError):
                found.add(identity(local_path(root).stat()))
        return frozenset(found)


_of_context: ContextVar[tuple[Wall, ...]] = ContextVar("walls", default=())

_kept: dict[str, dict[str, Wall]] = {}
"""Walls by output directory, and by who names the roots. An entry stays for the life of the process: some 300
bytes for each job with roots that the process has looked at.
"""


@contextmanager
def within(roots: Sequence[str] | None, said: str) -> Iterator[None]:
    """Holds what this thread opens meanwhile to `roots`, and to those that hold already; None holds to no
    further ones, and where there are no roots nothing is opened. Not for a generator to hold over a yield.
    """
    if roots is None:
        yield
        return
    token = _of_context.set((*_of_context.get(), _wall(roots, said)))
    try:
        yield
    finally:
        _of_context.reset(token)


@contextmanager
def unheld() -> Iterator[None]:
    """Takes the walls around this thread away for a question of our own, about names that nobody gave."""
    token = _of_context.set(())
    try:
        yield
    finally:
        _of_context.reset(token)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """A function that other threads call, held to what the caller of this is held to now."""
    walls = _of_context.get()

    @wraps(function)
    def held(*args: P.args, **kwargs: P.kwargs) -> T:
        token = _of_context.set(walls)
        try:
            return function(*args, **kwargs)
        finally:
            _of_context.reset(token)

    return held


def check_object(uri: str) -> None:
    """BadInput for an object of a store outside a wall around this thread. Local files are held where they are
    opened, and names in a store lead nowhere else.
    """
    if not is_local(uri):
        for wall in _of_context.get():
            check_held([uri], wall.roots, wall.said)


def keep_within(uri: str, roots: Sequence[str] | None, said: str) -> None:
    """Holds whatever this process opens at or below an output directory to `roots` from now on; None
    takes away what was said before.
    """
    if not is_local(uri):
        return
    place = str(local_path(uri))
    kept = _kept.get(place, {})
    if kept.get(said) == (wall := None if roots is None else _wall(roots, said)):
        return
    # Replaced whole: other threads read without a lock.
    others = {name: each for name, each in kept.items() if name != said}
    _kept[place] = others if wall is None else {**others, said: wall}


def around(path: Path) -> list[Wall]:
    """The walls that hold for a path now."""
    found = list(_of_context.get())
    if _kept:
        for folder in (path, *path.parents):
            found += _kept.get(str(folder), {}).values()
    return found


def is_held(uri: str) -> bool:
    """Whether roots hold for a local place: then a library must not open it by its name, which may lead elsewhere by
    then.
    """
    return is_local(uri) and bool(around(local_path(uri)))


def identity(facts: os.stat_result) -> Identity:
    """The identity of a folder or file: no other one of this machine has it."""
    return facts.st_dev, facts.st_ino


@dataclass(frozen=True, slots=True)
class Found:
    """Where a way ended: a name in the open `folder`, and how many links were followed. The name may be
    free. `folder` is the caller's to close.
    """

    name: str
    folder: int
    links: int


def walk(
    path: Path,
    walls: Sequence[Wall] = (),
    *,
    links: bool = True,
    make: Callable[[int, str], None] | None = None,
) -> Found:
    """Goes to an absolute path. With `links` a link under the last name is followed, too; `make` makes a
    folder that is missing, the last one included, and is given the open folder around it and its name.

    Raises BadInput for what lies outside a wall, FileNotFoundError, NotADirectoryError and other OSErrors
    as the system does.
    """
    way = _Way(path, walls, makes=make is not None)
    try:
        name = way.go(links=links, make=make)
        way.check(name)
        return Found(name, way.folders.pop(), way.links)
    except OSError:
        if way.links:
            way.check()  # the path is refused if links led outside, whether or not the file exists
        raise
    finally:
        way.close()


class _Way:
    """The open folders on a way, from the root of the file system on."""

    def __init__(self, path: Path, walls: Sequence[Wall], *, makes: bool) -> None:
        self.path, self.walls, self.links = path, walls, 0
        if makes:
            self._make_roots()
        self.roots = [wall.identities() for wall in walls]
        self.folders = [os.open("/", _INTO)]

    def _make_roots(self) -> None:
        """A root around the path that is not there yet: it is the operator's word, not a caller's."""
        for root in {root for wall in self.walls for root in wall.roots if is_local(root)}:
            if self.path.is_relative_to(local_path(root)):
                local_path(root).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        while self.folders:
            os.close(self.folders.pop())

    def go(self, *, links: bool, make: Callable[[int, str], None] | None) -> str:
        """Returns the last name, which is not opened."""
        names = list(reversed(self.path.parts[1:]))
        while names:
            name = names.pop()
            if name == "..":
                if len(self.folders) > 1:
                    os.close(self.folders.pop())
                continue
            is_last = not names and make is None
            if is_last and not links:
                return name
            target = self._link(name) if is_last else self._enter(name, make)
            if target is not None:
                names += self._follow(target)
            elif is_last:
                return name
        return "."

    def _enter(self, name: str, make: Callable[[int, str], None] | None) -> str | None:
        """Opens the next folder; returns where a link in place of one leads."""
        try:
            self.folders.append(os.open(name, _INTO, dir_fd=self.folders[-1]))
        except NotADirectoryError:
            target = self._link(name)
            if target is None:
                raise
            return target
        except FileNotFoundError:
            if make is None:
                raise
            self.check()
            make(self.folders[-1], name)
            self.folders.append(os.open(name, _INTO, dir_fd=self.folders[-1]))
        return None

    def _link(self, name: str) -> str | None:
        """Where a link leads; None for what is none, or is not there."""
        try:
            return os.readlink(name, dir_fd=self.folders[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _follow(self, target: str) -> list[str]:
        self.links += 1
        if self.links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.path))
        if target.startswith("/"):
            while len(self.folders) > 1:
                os.close(self.folders.pop())
        return [name for name in reversed(target.split("/")) if name not in ("", ".")]

    def check(self, name: str | None = None) -> None:
        """BadInput unless an open folder, or what has the name in the last of them, is a root of each
        wall.
        """
        if not self.walls:
            return
        passed = {identity(os.fstat(folder)) for folder in self.folders}
        for wall, roots in zip(self.walls, self.roots, strict=True):
            if not roots.isdisjoint(passed):
                continue
            is_root = str(self.path) in wall.roots and not self.links  # it may be missing
            if name is None or not (is_root or self._is_one_of(name, roots)):
                raise wall.refusal(self.path)

    def _is_one_of(self, name: str, roots: frozenset[Identity]) -> bool:
        with suppress(OSError):
            facts = os.stat(name, dir_fd=self.folders[-1], follow_symlinks=False)
            return not modes.S_ISLNK(facts.st_mode) and identity(facts) in roots
        return False


def _wall(roots: Sequence[str], said: str) -> Wall:
    return Wall(tuple(map(resolve, roots)), said)
