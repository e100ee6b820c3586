"""The process of a user's function: loads the function, calls it, hands its answers back as Arrow.

Run by path, as `python -P host.py DESCRIPTOR`. Nothing of ours is imported here, and NumPy and
pyarrow are imported before the user's folders come first on the path: a user's `common/` is the
user's own. Requests and replies go over the descriptor alone, so a function may print.
"""

import datetime
import importlib
import importlib.machinery
import itertools
import json
import logging
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

pa.array([0])  # pyarrow imports pandas here, where pandas is there: no call pays for that
Rows = list[dict[str, Any]]
Function = Callable[[Rows], Sequence[Mapping[str, Any]]]
Columns = dict[str, list[Any]]

Message = tuple[dict[str, Any], bytes]
"""What one side tells the other: a JSON object, and Arrow streams one after the other."""

SIZES = struct.Struct("<QQ")  # bytes of the JSON object and of the streams, in front of both
BUFFER_BYTES = 2**16  # a message that fits is one write and one read

PLAIN = frozenset({bool, int, float, str, bytes, datetime.date, datetime.time, datetime.timedelta})
"""Types whose values share an Arrow array with each other and with nulls, and come back unchanged."""

MISSING = object()
"""Stands for the value of a column that an answer does not have."""


class Channel:
    """Messages over a connected socket, for one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = end.makefile("rb", buffering=BUFFER_BYTES)

    def send(self, head: Mapping[str, Any], streams: pa.Buffer | bytes = b"") -> None:
        """Sends one message; OSError when the other side is gone."""
        text = json.dumps(head).encode()
        parts = (SIZES.pack(len(text), len(streams)), text, streams)
        for part in parts if len(streams) > BUFFER_BYTES else (b"".join(parts),):
            self._end.sendall(part)

    def receive(self) -> Message:
        """The next message; EOFError or OSError when the other side is gone."""
        head, streams = SIZES.unpack(self._read(SIZES.size))
        return json.loads(self._read(head)), self._read(streams)

    def close(self) -> None:
        """Lets the socket go."""
        self._reader.close()
        self._end.close()

    def _read(self, size: int) -> bytes:
        data: bytes = self._reader.read(size)
        if len(data) < size:
            raise EOFError("the other side is gone")
        return data


class LoadProblem(Exception):
    """The function cannot be loaded; the message is one sentence."""


def loaded(setup: Mapping[str, Any]) -> Function:
    """Imports `setup["callable"]` from `setup["folders"]`, and makes an instance where it is a class.

    LoadProblem says what stands in the way.
    """
    where, args = setup["callable"], setup["args"]
    module, _, name = where.partition(":")
    _refuse_collision(module, setup["folders"])
    sys.path[:] = [*setup["folders"], *(each for each in sys.path if each not in setup["folders"])]
    try:
        found: Function = getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise LoadProblem(f"{module!r} has no {name!r}: {error}") from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise LoadProblem(f"{where!r} cannot be imported: {_said(error)}") from error
    if isinstance(found, type):
        try:
            found = found(**args)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            why = _said(error)
            raise LoadProblem(f"{where!r} cannot be made with engine.args: {why}") from error
    elif args:
        raise LoadProblem(f"engine.args are for a class, and {where!r} is a {type(found).__name__}")
    if not callable(found):
        raise LoadProblem(f"{where!r} is not callable")
    return found


def error_types(error: BaseException | None) -> list[list[str]]:
    """The qualified names of an error's types, then those of its causes. An OSError without a number
    is not named so: a library raised it, and the system's error is its cause.
    """
    found: list[list[str]] = []
    while error is not None and len(found) < 20:  # causes may go round in a circle
        without = OSError if isinstance(error, OSError) and error.errno is None else None
        kinds = [kind for kind in type(error).__mro__ if kind is not without]
        found.append([f"{kind.__module__}.{kind.__qualname__}" for kind in kinds])
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _refuse_collision(module: str, folders: Sequence[str]) -> None:
    """LoadProblem for a name that an installed module has as well: others want that one."""
    top = module.partition(".")[0]
    own = [folder for folder in sys.path if folder and folder not in folders]
    find_spec = importlib.machinery.PathFinder.find_spec
    if find_spec(top, folders) and (top in sys.builtin_module_names or find_spec(top, own)):
        raise LoadProblem(f"an installed module has the name {top!r}, too: rename yours")


def answered(function: Function, where: str, head: Mapping[str, Any], streams: bytes) -> Message:
    """The reply to some calls, made one after the other with the numbers of rows of `head["calls"]`:
    answers by row, and by call the problem that all of its rows share.
    """
    sizes: list[int] = head["calls"]
    problems: dict[int, str] = {}
    results: dict[int, object] = {}
    try:
        table = pa.ipc.open_stream(streams).read_all()
        rows = table.to_pylist() if table.num_columns else [{} for _ in range(sum(sizes))]
        began = time.monotonic()
        for call, stop in enumerate(itertools.accumulate(sizes)):
            start = stop - sizes[call]
            found = _called(function, where, rows[start:stop])
            if isinstance(found, str):
                problems[call] = found
            else:
                results.update(enumerate(found, start))
        seconds = time.monotonic() - began
        reply = Reply(table)
        reply.take(results, where)
    except BaseException as error:
        problem = f"rows or answers of {where} cannot be handed on: {_said(error)}"
        return {"problems": dict.fromkeys(range(len(sizes)), problem), "seconds": 0.0}, b""
    return reply.message(problems, seconds)


def _called(function: Function, where: str, rows: Rows) -> list[object] | str:
    """What one call returned for each row, or why it returned nothing of use."""
    try:
        results: object = function(rows)
        if not isinstance(results, Sequence) or isinstance(results, str | bytes):
            return f"{where} returned {type(results).__name__}, not a list of dicts"
        if len(results) != len(rows):
            return f"{where} returned {len(results)} results for {len(rows)} rows"
        return list(results)
    except BaseException as error:
        return f"{where} raised {_said(error)}"


class Reply:
    """The answers of some calls. Rows whose values have the same kinds share a stream of Arrow, so each
    value comes back as it is, whatever the others of its column are.
    """

    def __init__(self, given: pa.Table) -> None:
        self._given = given
        self._groups: list[dict[str, Any]] = []
        self._refused: list[tuple[int, str, str]] = []
        self._sink = pa.BufferOutputStream()

    def message(self, problems: Mapping[int, str], seconds: float) -> Message:
        """All of it, for the channel."""
        head = {"problems": problems, "seconds": seconds}
        return {**head, "groups": self._groups, "refused": self._refused}, self._sink.getvalue()

    def take(self, results: Mapping[int, object], where: str) -> None:
        """Packs what a function returned by row; what is no answer is refused by itself."""
        answers: dict[int, Mapping[str, Any]] = {}
        for at, result in results.items():
            if isinstance(result, Mapping) and all(isinstance(key, str) for key in result):
                answers[at] = result
            else:
                what = f"{type(result).__name__} for this row, not a dict of columns"
                self._refused.append((at, "function_error", f"{where} returned {what}"))
        rows = list(answers)
        columns = {
            name: [answer.get(name, MISSING) for answer in answers.values()]
            for name in dict.fromkeys(itertools.chain.from_iterable(answers.values()))
        }
        arrays = {name: _plain_array(values) for name, values in columns.items()}
        mixed = [values for name, values in columns.items() if arrays[name] is None]
        if not mixed:
            self._add(rows, columns, arrays)
            return
        groups: dict[object, list[int]] = {}
        for place in range(len(rows)):
            try:
                kinds = tuple(_kind(values[place]) for values in mixed)
                groups.setdefault(kinds, []).append(place)
            except Exception:  # as of a list that holds itself, for which Arrow would crash
                self._take_alone(rows[place], _part(columns, [place]))
        for places in groups.values():
            self._take_group([rows[place] for place in places], _part(columns, places))

    def _take_group(self, rows: list[int], columns: Columns) -> None:
        """Packs rows of the same kinds; one by one when Arrow refuses a value of them."""
        try:
            arrays = {name: pa.array(values) for name, values in columns.items()}
        except Exception:
            for place, row in enumerate(rows):
                self._take_alone(row, _part(columns, [place]))
        else:
            self._add(rows, columns, arrays)

    def _take_alone(self, row: int, columns: Columns) -> None:
        """Packs one row; the row is refused for a value that no array holds."""
        arrays: dict[str, pa.Array] = {}
        for name, (value,) in columns.items():
            try:
                arrays[name] = self._array_alone(row, name, value)
            except Exception:
                is_short = isinstance(value, str | int | float)
                what = repr(value)[:100] if is_short else f"a {type(value).__name__}"
                why = "which Arrow cannot hold"
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    why = "a whole number beyond 64 bits: return it as a text or a float"
                message = f"the column {name!r} holds {what}, {why}"
                self._refused.append((row, "bad_type", message))
                return
        self._add([row], columns, arrays)

    def _array_alone(self, row: int, name: str, value: Any) -> pa.Array:
        """An array of one value. What the row itself holds, such as a map, goes back in its own type."""
        try:
            return pa.array([_clean(value)])
        except Exception:
            own = self._given.column(name).slice(row, 1).combine_chunks()
            if own[0].as_py() != value:
                raise
            return own

    def _add(self, rows: list[int], columns: Columns, arrays: Mapping[str, pa.Array]) -> None:
        if arrays:
            # Names go in the head: Arrow's must be UTF-8.
            places = [str(place) for place in range(len(arrays))]
            batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=places)
            with pa.ipc.new_stream(self._sink, batch.schema) as writer:
                writer.write_batch(batch)
        numpy = [at for at, values in enumerate(columns.values()) if _is_numpy(values[0])]
        self._groups.append({"rows": rows, "names": list(arrays), "numpy": numpy})


def _part(columns: Columns, places: Sequence[int]) -> Columns:
    """The values of some rows of the same kinds, without the columns that these rows do not have."""
    return {
        name: [values[place] for place in places]
        for name, values in columns.items()
        if values[places[0]] is not MISSING
    }


def _plain_array(values: Sequence[Any]) -> pa.Array | None:
    """The values as an array, where all but nulls are of one plain type; else None."""
    types = set(map(type, values)) - {NoneType}
    with suppress(Exception):  # half of a character, or a number that is too large
        if len(types) <= 1 and types <= PLAIN:
            return pa.array(values)
    return None


def _kind(value: Any) -> object:
    """Values of one kind make one Arrow type, and come back from its array as they were."""
    known = type(value)
    if known in PLAIN or value is None or value is MISSING:
        return known
    if isinstance(value, dict):
        return (dict, *((key, _kind(each)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        kinds: set[object] = set(map(type, value))
        if not kinds <= PLAIN | {NoneType}:
            kinds = set(map(_kind, value))
        return (list, frozenset(kinds - {NoneType}))
    if isinstance(value, np.ndarray):
        return (known, value.dtype.char, value.ndim)
    if known is datetime.datetime:
        return (known, str(value.tzinfo))
    if known is Decimal:
        return (known, value.as_tuple().exponent)
    return (known, str(pa.scalar(value).type))


def _is_numpy(value: Any) -> bool:
    """Whether the value must come back as NumPy's: its width is the type of its column."""
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _clean(value: Any) -> Any:
    """The same value as Arrow takes it: `?` for half of a character, lists for arrays of several
    dimensions. RecursionError for a value that contains itself, for which Arrow would crash.
    """
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    is_deep = isinstance(value, np.ndarray) and value.ndim != 1
    return value.tolist() if is_deep else value


def _said(error: BaseException) -> str:
    """Type and message of an error, whose own code makes the message."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def main() -> None:
    """Serves calls over the descriptor until the other side is gone."""
    with suppress(OSError):  # where memory runs out, the kernel ends this process before the child
        Path("/proc/self/oom_score_adj").write_text("1000")
    (end := socket.socket(fileno=int(sys.argv[1]))).set_inheritable(False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    channel = Channel(end)
    with suppress(EOFError, OSError):
        setup, _ = channel.receive()
        logging.basicConfig(level=setup["log_level"].upper())
        try:
            function = loaded(setup)
        except LoadProblem as problem:
            channel.send({"problem": str(problem), "causes": error_types(problem.__cause__)})
            return
        channel.send({"problem": None})
        while True:
            channel.send(*answered(function, setup["callable"], *channel.receive()))


if __name__ == "__main__":
    main()
