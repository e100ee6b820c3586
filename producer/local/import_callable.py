"""A process that imports the callable of a function job and says what is wrong with it.

Run by path, as `python -P import_callable.py DESCRIPTOR`, so that nothing of ours is imported. As in the
process that will call the function, pyarrow comes before the user's folders on the path.
"""

import difflib
import fcntl
import importlib
import importlib.machinery
import inspect
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa


def problem(where: str, args: Mapping[str, Any], folders: Sequence[str]) -> str | None:
    """Why `module:name` cannot run here, in one sentence; None where nothing is seen. A class is not made, since that
    may take long.
    """
    module, _, name = where.partition(":")
    if (taken := _taken(module.partition(".")[0], folders)) is not None:
        return taken
    sys.path[:] = [*folders, *(each for each in sys.path if each not in folders)]
    try:
        with _alone(folders):
            home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return _no_module(where, error.name, folders)
        return _not_imported(module, error, folders)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return _not_imported(module, error, folders)
    if not hasattr(home, name):
        return _no_name(where, vars(home), getattr(home, "__file__", None) or "built in")
    return _not_called(where, getattr(home, name), args)


@contextmanager
def _alone(folders: Sequence[str]) -> Iterator[None]:
    """Hold the lock of the first folder while user code is imported: a module that fills a cache or a table at import
    must not meet the half-filled one of another process. The worker's host of functions takes the same lock.
    Without effect on file systems that have no such locks.
    """
    with ExitStack() as held:
        with suppress(OSError, IndexError):
            folder = os.open(folders[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
            # A process that the module has forked has the folder open, too, and would keep the lock.
            held.callback(fcntl.flock, folder, fcntl.LOCK_UN)
        yield


def _taken(top: str, folders: Sequence[str]) -> str | None:
    """What is wrong with a name that an installed module has as well: others want that one."""
    find_spec = importlib.machinery.PathFinder.find_spec
    installed = [folder for folder in sys.path if folder and folder not in folders]
    is_taken = top in sys.builtin_module_names or find_spec(top, installed) is not None
    if is_taken and find_spec(top, folders) is not None:
        return f"an installed module has the name {top!r}, too: rename yours"
    return None


def _no_module(where: str, missing: str, folders: Sequence[str]) -> str:
    module, _, name = where.partition(":")
    found = _modules(folders)
    near = difflib.get_close_matches(module, found, 1)
    # A name that the other module does not even mention would be the next mistake.
    hint = _hint([f"{each}:{name}" if name in found[each] else each for each in near])
    return (
        f"there is no module {missing!r}{hint}: looked in {', '.join(folders) or 'no folder'}, then in what is "
        f"installed in {sys.prefix}"
    )


def _no_name(where: str, found: Mapping[str, Any], file: str) -> str:
    module, _, name = where.partition(":")
    own = [key for key, value in found.items() if callable(value) and not key.startswith("_")]
    here = [key for key in own if getattr(found[key], "__module__", module) == module]
    hint = _hint([f"{module}:{near}" for near in difflib.get_close_matches(name, own)])
    has = f"it has {', '.join(here[:10])}" if here else "it has no function"
    return f"the module {module!r} ({file}) has no {name!r}{hint}: {has}"


def _not_imported(module: str, error: BaseException, folders: Sequence[str]) -> str:
    """The last line of what Python would print, and the line of a file that the user wrote."""
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        raised = [
            each for each in frames if each.filename != __file__ and "<frozen" not in each.filename
        ]
        own = [
            each for each in raised if any(_is_below(each.filename, folder) for folder in folders)
        ]
        place = next((f"{each.filename}:{each.lineno}" for each in reversed(own or raised)), "")
    return f"the module {module!r} cannot be imported: {said}{place and f' ({place})'}"


def _not_called(where: str, found: object, args: Mapping[str, Any]) -> str | None:
    if isinstance(found, type):
        if not any("__call__" in vars(each) for each in found.__mro__):
            return (
                f"{where!r} is a class without __call__, so its instance cannot be called with rows"
            )
        return _unfit(found, (), args, f"{where!r} cannot be made with engine.args")
    if not callable(found):
        return f"{where!r} is a {type(found).__name__}, and not a function or a class"
    if args:
        return f"engine.args are for a class, and {where!r} is a {type(found).__name__}"
    return _unfit(found, ([],), {}, f"{where!r} cannot be called with a list of rows")


def _unfit(found: Any, given: Sequence[object], named: Mapping[str, Any], said: str) -> str | None:
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # a callable of C may have none
        return None
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        return f"{said}: {error}"
    return None


def _modules(folders: Sequence[str]) -> dict[str, str]:
    """Modules that lie in the folders, and what stands in them."""
    found: dict[str, str] = {}
    for folder in folders:
        with suppress(OSError):
            for each in sorted(Path(folder).iterdir()):
                file = each / "__init__.py" if each.is_dir() else each
                if file.suffix == ".py" and file.is_file():
                    found.setdefault(each.stem, file.read_text(errors="replace"))
    return found


def _is_below(file: str, folder: str) -> bool:
    return Path(file).is_relative_to(folder) and not Path(file).is_relative_to(sys.prefix)


def _hint(near: Sequence[str]) -> str:
    return f" (did you mean {near[0]}?)" if near else ""


def main() -> None:
    """Reads the setup from the socket, and writes the moment at which the import begins, by the clock that all
    processes of the machine share, then the problem, or null.
    """
    (end := socket.socket(fileno=int(sys.argv[1]))).set_inheritable(False)
    setup = json.loads(end.makefile("rb").readline())
    pa.array([0])  # imports pandas, where pandas is there
    end.sendall(json.dumps({"began": time.monotonic()}).encode() + b"\n")
    said = problem(setup["callable"], setup["args"], setup["folders"])
    end.sendall(json.dumps({"problem": said}).encode() + b"\n")
    os._exit(
        0
    )  # threads that the module started, and what it registered for the end, are not waited for


if __name__ == "__main__":
    main()
