"""The function engine: a Python callable over a list of rows, one call at a time."""

import importlib
import importlib.machinery
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import structlog

from nightshift.common.errors import EngineLoadFailed
from nightshift.common.spec import FunctionEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.engines.protocol import Answer, Refusal, Work

log = structlog.get_logger(__name__)

Rows = list[dict[str, Any]]

Function = Callable[[Rows], Sequence[Mapping[str, Any]]]

CONCURRENT_ROWS = 64
"""Rows that may wait for the running call to end, so that one-row batches leave no gap."""


class FunctionEngine:
    """Calls `function(rows)` with a list of row dicts; it returns as many dicts.

    Of a class one instance is made, with `engine.args`, in the thread that then calls it.
    """

    name = "function"
    revision: str | None = None
    concurrency = CONCURRENT_ROWS

    def __init__(self, function: Function, where: str) -> None:
        self.version = f"python {sys.version_info.major}.{sys.version_info.minor}"
        self._function = function
        self._where = where
        # All calls run in one thread: some libraries keep state by thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="function")
        self._call_ends_at = math.inf

    @classmethod
    def load(cls, spec: FunctionEngineSpec, allowed: Sequence[str], paths: Sequence[Path]) -> Self:
        """Imports the callable, and makes an instance where it is a class.

        EngineLoadFailed when the module is not allowed, when the name is missing or not callable,
        or when the instance cannot be made.
        """
        module_name, _, name = spec.callable.partition(":")
        if module_name not in allowed:
            raise EngineLoadFailed(
                f"the module {module_name!r} is not allowed on this worker: its operator lists "
                "modules in NIGHTSHIFT_ALLOWED_MODULES"
            )
        _refuse_collision(module_name, paths)
        sys.path.extend(str(path) for path in paths if str(path) not in sys.path)
        try:
            found = getattr(importlib.import_module(module_name), name)
        except AttributeError as error:
            raise EngineLoadFailed(f"{module_name!r} has no {name!r}: {error}") from error
        except Exception as error:
            raise EngineLoadFailed(
                f"{spec.callable!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        engine = cls(found, spec.callable)
        if isinstance(found, type):
            engine._make_instance(found, spec)
        elif spec.args:
            raise EngineLoadFailed(
                f"engine.args are for a class, and {spec.callable!r} is a {type(found).__name__}"
            )
        if not callable(engine._function):
            raise EngineLoadFailed(f"{spec.callable!r} is not callable")
        return engine

    def _make_instance(self, kind: type, spec: FunctionEngineSpec) -> None:
        try:
            self._function = self._thread.submit(kind, **spec.args).result()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.close()
            raise EngineLoadFailed(
                f"{spec.callable!r} cannot be made with engine.args: {type(error).__name__}: "
                f"{error}"
            ) from error

    def start(self, work: Work) -> "Future[None]":
        """Queues one call for the batch. An exception or a wrong number of results is isolated by
        halving.
        """
        work.recorder.rows_entered(len(work.requests))
        return self._thread.submit(self._run, work, work.recorder.clock())

    def _run(self, work: Work, started_at: float) -> None:
        rows = len(work.requests)
        work.recorder.stage_passed(Stage.QUEUE, work.recorder.clock() - started_at)
        try:
            with work.recorder.span(Stage.INFER):
                self._call(work, 0, rows)
        finally:
            work.recorder.rows_left(rows)

    def stalled_seconds(self) -> float:
        """Infinite once a call has run longer than the time of all its rows, else 0."""
        return math.inf if time.monotonic() > self._call_ends_at else 0.0

    def close(self) -> None:
        """Starts no further call; a running call goes on to its end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _call(self, work: Work, start: int, stop: int) -> None:
        if work.stopped.is_set() or start == stop:
            return
        rows = [dict(request.row or {}) for request in work.requests[start:stop]]
        self._call_ends_at = time.monotonic() + work.row_timeout_seconds * len(rows)
        try:
            results: Sequence[object] | None = self._function(rows)
            problem = self._wrong_length(results, len(rows))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            results, problem = None, f"{self._where} raised {type(error).__name__}: {error}"
        finally:
            self._call_ends_at = math.inf
        if problem is None and results is not None:
            for position, result in enumerate(results, start):
                work.emit(position, self._outcome(result))
        elif stop - start == 1:
            work.emit(start, Refusal(RowErrorKind.FUNCTION_ERROR, problem or "no result"))
        else:
            if stop - start == len(work.requests):
                log.warning("batch_is_halved", rows=len(rows), error=problem)
            middle = (start + stop) // 2
            self._call(work, start, middle)
            self._call(work, middle, stop)

    def _wrong_length(self, results: object, rows: int) -> str | None:
        if not isinstance(results, Sequence) or isinstance(results, str | bytes):
            return f"{self._where} returned {type(results).__name__}, not a list of dicts"
        if len(results) != rows:
            return f"{self._where} returned {len(results)} results for {rows} rows"
        return None

    def _outcome(self, result: object) -> Answer | Refusal:
        if not isinstance(result, Mapping) or not all(isinstance(key, str) for key in result):
            return Refusal(
                RowErrorKind.FUNCTION_ERROR,
                f"{self._where} returned {type(result).__name__} for this row, not a dict of "
                "columns",
            )
        return Answer(columns=result)


def _refuse_collision(module_name: str, paths: Sequence[Path]) -> None:
    """EngineLoadFailed for a name that is in both paths: ours come first and would be loaded."""
    top = module_name.partition(".")[0]
    folders = [str(path) for path in paths]
    own = [folder for folder in sys.path if folder and folder not in folders]
    find_spec = importlib.machinery.PathFinder.find_spec
    is_installed = top in sys.builtin_module_names or find_spec(top, own)
    if is_installed and find_spec(top, folders):
        raise EngineLoadFailed(
            f"the module name {top!r} is also the name of an installed module: rename yours"
        )
