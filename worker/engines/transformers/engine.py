"""The transformers engine: one model in PyTorch and one thread that computes, pass after pass.

Rows of all batches share passes. The thread of a batch counts the tokens of its rows.
"""

import math
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, Self

import torch
import transformers

from nightshift.common.errors import EngineDead
from nightshift.common.spec import Task, TransformersEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.engines import hub
from nightshift.worker.engines.protocol import Refusal, Work, timed_out
from nightshift.worker.engines.transformers.models import TextModel, Texts, load
from nightshift.worker.engines.transformers.rows import Batch, Row, RowQueue

SORTED_PASSES = 8
"""Passes whose rows are sorted by length together, so that few tokens are padding."""


class TransformersEngine:
    """`concurrency` is the rows that are sorted together, several passes of `batch_size`."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self, model: TextModel, spec: TransformersEngineSpec) -> None:
        self._model = model
        self._spec = spec
        self.revision = model.revision
        self.cache_tokens: int | None = None
        self.code: Mapping[str, str] = {}
        self.concurrency = SORTED_PASSES * spec.batch_size
        self._tokenizing = threading.Lock()
        self._queue = RowQueue(self.concurrency)
        self._pass_ends_at = math.inf
        self._most_tokens = math.inf
        self._died: str | None = None
        threading.Thread(target=self._passes, name="passes", daemon=True).start()

    @classmethod
    def load(cls, spec: TransformersEngineSpec, revision: str | None, runner: str) -> Self:
        """Loads the model for a task's `runner`; EngineLoadFailed says why it cannot be loaded."""
        with hub.load_errors("transformers", spec.model):
            return cls(load(spec, revision or spec.revision, runner), spec)

    def resolve(self, task: Task) -> Mapping[str, Any]:
        """Nothing: no answer depends on what is loaded here."""
        return {}

    def start(self, work: Work) -> "Future[None]":
        """Counts tokens in the caller's thread and queues every row that is not too long."""
        self._model.check(work.task)
        batch = Batch(work)
        with work.recorder.span(Stage.TOKENIZE):
            rows = self._rows(batch)

        def drop(withdrawn: Collection[int]) -> None:
            batch.leave(self._queue.drop(batch, set(withdrawn)))

        work.wait(drop, [row.row_index for row in rows])
        if not self._queue.add(rows):
            batch.fail(EngineDead(self._died) if self._died else None)
        work.on_stop(lambda: batch.leave(self._queue.drop(batch)))
        return batch.future

    def stalled_seconds(self) -> float:
        """Seconds for which a pass has run longer than its rows may take."""
        return max(0.0, time.monotonic() - self._pass_ends_at)

    def close(self, error: BaseException | None = None) -> None:
        """Starts no further pass; a running pass goes on to its end.

        The batches that wait fail with the error, or are cancelled where there is none.
        """
        for batch in {row.batch for row in self._queue.close()}:
            batch.fail(error)

    def _rows(self, batch: Batch) -> list[Row]:
        """The rows that can be computed. The others are refused."""
        texts: list[Texts] = [
            (one.text,) if one.text_pair is None else (one.text, one.text_pair)
            for one in batch.work.requests
        ]
        with self._tokenizing:
            lengths = self._lengths(texts)
        longest = self._model.longest
        rows: list[Row] = []
        for position, counts in enumerate(lengths):
            if isinstance(counts, Exception):
                message = f"the tokenizer refused the text: {counts}"
                batch.end(position, Refusal(RowErrorKind.REFUSED, message))
            elif max(counts) > longest and not self._spec.truncate:
                message = (
                    f"the text has {max(counts)} tokens, the model takes {longest} "
                    "(engine.truncate cuts them)"
                )
                batch.end(position, Refusal(RowErrorKind.TOO_LONG, message))
            else:
                cut = [min(count, longest) for count in counts]
                rows.append(Row(batch, position, texts[position], max(cut), sum(cut)))
        return rows

    def _lengths(self, rows: list[Texts]) -> list[list[int] | Exception]:
        """The tokens of each row, or the error that the tokenizer raises for it alone."""
        try:
            return list(self._model.lengths(rows)) if rows else []
        except Exception as error:
            return [error] if len(rows) == 1 else [self._lengths([row])[0] for row in rows]

    def _passes(self) -> None:
        while rows := self._queue.take(self._spec.batch_size):
            try:
                self._pass(rows)
            except BaseException as error:  # no other thread computes: the engine is dead
                self._died = f"PyTorch cannot continue: {type(error).__name__}: {error}"
                dead = EngineDead(self._died)
                dead.__cause__ = error
                self.close(dead)
                for batch in {row.batch for row in rows}:
                    batch.fail(dead)

    def _pass(self, rows: list[Row]) -> None:
        """Computes rows in one pass, or in two halves where the pass fails or memory is too small.

        A row that fails alone is refused.
        """
        rows = _wanted(rows)
        if not rows:
            return None
        if len(rows) > 1 and _padded(rows) > self._most_tokens:
            return self._halves(rows)
        for batch in {row.batch for row in rows}:
            batch.began()
        seconds = max(row.batch.work.row_timeout_seconds for row in rows)
        began_at = time.monotonic()
        self._pass_ends_at = began_at + seconds
        lines, why, is_too_large = None, "", False
        try:
            lines = self._model.compute([row.texts for row in rows])
        except torch.AcceleratorError:
            raise  # this process cannot use the device any more
        except Exception as error:
            is_too_large = isinstance(error, torch.OutOfMemoryError | MemoryError)
            why = f"the model refused the row: {type(error).__name__}: {error}"
        finally:
            self._pass_ends_at = math.inf
        # Not earlier: the traceback of the error held the memory of the pass.
        if is_too_large:
            self._most_tokens = max(1, _padded(rows) // 2)
            torch.cuda.empty_cache()
        if lines is None:
            if len(rows) > 1:
                return self._halves(rows)
            return rows[0].batch.end(rows[0].position, Refusal(RowErrorKind.REFUSED, why))
        late = time.monotonic() > began_at + seconds
        for row, line in zip(rows, lines, strict=True):
            task = row.batch.work.task
            row.batch.end(
                row.position,
                timed_out(row.batch.work) if late else self._model.outcome(task, line, row.tokens),
            )
        return None

    def _halves(self, rows: list[Row]) -> None:
        middle = len(rows) // 2
        self._pass(rows[:middle])
        self._pass(rows[middle:])


def _wanted(rows: list[Row]) -> list[Row]:
    """The rows without those that were withdrawn or whose work was stopped. They begin now."""
    kept = []
    for row in rows:
        if row.batch.work.stopped.is_set() or not row.batch.work.begin(row.row_index):
            row.batch.leave(1)
        else:
            kept.append(row)
    return kept


def _padded(rows: list[Row]) -> int:
    """Tokens that a pass computes, padding included."""
    return len(rows) * max(row.longest for row in rows)
