"""Engines of the function backend: over a callable of the test's own process, or over a real host."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from nightshift.common.settings import Settings
from nightshift.common.spec import FunctionEngineSpec, FunctionTask
from nightshift.worker.engines.function import host
from nightshift.worker.engines.function.answers import Found, packed, unpacked
from nightshift.worker.engines.function.engine import FunctionEngine
from nightshift.worker.engines.protocol import Outcome, Request, Work

TASK = FunctionTask(kind="function")

CALLABLES = Path(__file__).with_name("callables.py")


class InProcess:
    """A host without a process: for callables that share events and lists with their test. Rows and
    answers take the same way as through a process.
    """

    is_over = False
    row_seconds = math.inf
    code: Mapping[str, str] = MappingProxyType({})

    def __init__(self, function: Callable[[host.Rows], Any], where: str) -> None:
        self._function, self._where = function, where

    def call(
        self, rows: pa.Table, sizes: Sequence[int], seconds: float, unwanted: Callable[[], bool]
    ) -> list[Found]:
        head = {"calls": list(sizes)}
        reply, streams = host.answered(self._function, self._where, head, packed(rows))
        return unpacked(json.loads(json.dumps(reply)), streams, sizes)

    def close(self) -> None: ...


def engine_of(function: Callable[[host.Rows], Any], where: str = "rules:f") -> FunctionEngine:
    """An engine over a callable of this process."""
    return FunctionEngine(where, lambda _seconds: InProcess(function, where))


def hosted(
    name: str, args: dict[str, Any] | None = None, *folders: Path, **settings: Any
) -> FunctionEngine:
    """An engine over a real host. Without folders the callable is one of tests/support/callables.py;
    `call_timeout_seconds` goes to the spec, everything else to the settings.
    """
    spec = FunctionEngineSpec(
        backend="function",
        callable=name,
        args=args or {},
        call_timeout_seconds=settings.pop("call_timeout_seconds", None),
    )
    paths = tuple(map(str, folders or [CALLABLES.parent]))
    known = {"allowed_modules": (spec.module,), "callable_paths": paths, **settings}
    return FunctionEngine.load(spec, Settings(**known))


def work_of(
    rows: Sequence[dict[str, Any]],
    emit: Callable[[int, Outcome], None] = lambda *_: None,
    row_timeout_seconds: float = 600,
) -> Work:
    """A batch for a function."""
    requests = [Request(at) for at in range(len(rows))]
    table = pa.Table.from_pylist(list(rows))
    return Work(TASK, requests, row_timeout_seconds, emit, rows=table)


def outcomes_of(
    engine: FunctionEngine, rows: Sequence[dict[str, Any]], row_timeout_seconds: float = 600
) -> dict[int, Outcome]:
    """What an engine says of each row of a batch, by position."""
    found: dict[int, Outcome] = {}
    engine.start(work_of(rows, found.__setitem__, row_timeout_seconds)).result(120)
    return found


def through_the_host(results: list[Any], given: pa.Table | None = None) -> list[Outcome]:
    """What becomes of these results of one call, on the way that leads out of a function's process."""
    given = given or pa.table({"id": [f"r{at}" for at in range(len(results))]})
    sizes = [len(results)]
    reply, streams = host.answered(
        lambda _rows: results, "rules:f", {"calls": sizes}, packed(given)
    )
    (found,) = unpacked(reply, streams, sizes)
    assert isinstance(found, list)
    return found
