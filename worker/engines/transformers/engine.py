"""The transformers engine: one model in PyTorch and one thread that computes, pass after pass.

Rows of all batches share passes. The thread of a batch makes the token ids of its rows.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import transformers

from nightshift.common.errors import EngineDead
from nightshift.common.spec import Task, TransformersEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.common.text import counted
from nightshift.worker.engines import hub
from nightshift.worker.engines.protocol import Outcome, Refusal, Work, timed_out
from nightshift.worker.engines.transformers.budget import Budget
from nightshift.worker.engines.transformers.models import Launched, TextModel, load
from nightshift.worker.engines.transformers.rows import (
    Batch,
    Row,
    RowQueue,
    Texts,
    padded,
    texts_of,
)
from nightshift.worker.engines.transformers.tokens import Ids
from nightshift.worker.telemetry.stage import Stage

T = TypeVar("T")

SORTED_ROWS = 4096
"""Rows that are sorted by length together, so that few tokens are padding. The library sorts all rows; of so
many short ones a pass has texts of one length or two."""

SORTED_PASSES = 64
"""Passes whose rows are sorted together at most, which bounds the time that a short row waits for long ones."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows that are computed together since `began_at` (monotonic seconds)."""

    rows: list[Row]
    launched: Launched
    began_at: float
    seconds: float
    """How long the rows may take."""


class TransformersEngine:
    """`concurrency` is half the rows that are sorted together, since a child holds twice as many."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self, model: TextModel, spec: TransformersEngineSpec) -> None:
        self._model = model
        self._spec = spec
        self.revision = model.revision
        self.cache_tokens: int | None = None
        self.code: Mapping[str, str] = {}
        self.concurrency = SORTED_ROWS // 2
        self._tokenizing = threading.Lock()
        self._queue = RowQueue(SORTED_ROWS, SORTED_PASSES)
        self._budget = Budget.first(spec.batch_size, is_on_gpu=model.runs_ahead)
        self._pass_ends_at, self._finished_at = math.inf, -math.inf
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
        """Makes token ids in the caller's thread and queues every row that is not too long."""
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
        texts = [texts_of(one) for one in batch.work.requests]
        # HF's fast tokenizers are not safe for two threads at once.
        with self._tokenizing:
            sequences = self._sequences(texts)
        longest = self._model.longest
        rows: list[Row] = []
        refused: dict[int, Refusal] = {}
        for position, found in enumerate(sequences):
            if isinstance(found, Exception):
                message = f"the tokenizer refused the text: {found}"
                refused[position] = Refusal(RowErrorKind.REFUSED, message)
                continue
            row = Row(batch, position, found)
            if row.longest > longest:
                message = (
                    f"the text has {counted(row.longest, 'token')}, the model takes {longest} "
                    "(engine.truncate cuts them)"
                )
                refused[position] = Refusal(RowErrorKind.TOO_LONG, message)
            else:
                rows.append(row)
        if refused:
            batch.end([*refused], [*refused.values()])
        return rows

    def _sequences(self, rows: list[Texts]) -> list[tuple[Ids, ...] | Exception]:
        """The sequences of each row, or the error that the tokenizer raises for it alone."""
        try:
            return list(self._model.sequences(rows)) if rows else []
        except Exception as error:
            return [error] if len(rows) == 1 else [self._sequences([row])[0] for row in rows]

    def _passes(self) -> None:
        """Computes until the queue is closed. Where the model runs ahead, the next pass is launched before the
        numbers of a pass are waited for.
        """
        ahead: Pass | None = None
        while (rows := self._queue.take(self._budget.next, wait=ahead is None)) or ahead:
            under_way = {row.batch for row in (*rows, *(ahead.rows if ahead else ()))}
            try:
                launched = self._launch(rows, ahead)
                if ahead is not None:
                    self._finish(ahead, launched)
                ahead = launched
                if ahead is not None and not self._model.runs_ahead:
                    self._finish(ahead)
                    ahead = None
            except BaseException as error:  # no other thread computes: the engine is dead
                self._died = f"PyTorch cannot continue: {type(error).__name__}: {error}"
                dead = EngineDead(self._died)
                dead.__cause__ = error
                self.close(dead)
                for batch in under_way:
                    batch.fail(dead)
                return

    def _pass(self, rows: list[Row], other: Pass | None) -> None:
        launched = self._launch(rows, other)
        if launched is not None:
            self._finish(launched, other)

    def _launch(self, rows: list[Row], other: Pass | None) -> Pass | None:
        """Begins a pass while the `other` may be under way; None where none of the rows is wanted, or where they
        ended in smaller passes.
        """
        rows = _wanted(rows)
        if not rows:
            return None
        if len(rows) > 1 and padded(rows) > self._budget.most:
            self._halves(rows, other)
            return None
        for batch in {row.batch for row in rows}:
            batch.began()
        seconds = max(row.batch.work.row_timeout_seconds for row in rows)
        began_at = time.monotonic()
        self._pass_ends_at = began_at + seconds
        launched = self._tried(rows, lambda: self._model.launch(rows), other)
        return None if launched is None else Pass(rows, launched, began_at, seconds)

    def _finish(self, each: Pass, other: Pass | None = None) -> None:
        """Waits for a pass, and ends its rows; the `other` goes on."""
        numbers = self._tried(each.rows, lambda: self._model.numbers(each.launched), other)
        if numbers is None:
            return
        now = time.monotonic()
        self._expect(other)
        taken = now - max(each.began_at, self._finished_at)
        self._finished_at = now
        self._budget = self._budget.passed(len(each.rows), padded(each.rows), taken, each.seconds)
        lines: dict[Batch, list[int]] = defaultdict(list)
        for line, row in enumerate(each.rows):
            lines[row.batch].append(line)
        for batch, places in lines.items():
            rows = [each.rows[line] for line in places]
            if taken > each.seconds:
                outcomes: list[Outcome] = [timed_out(batch.work)] * len(rows)
            else:
                tokens = [row.tokens for row in rows]
                outcomes = self._model.outcomes(batch.work.task, numbers[places], tokens)
            batch.end([row.position for row in rows], outcomes)

    def _expect(self, other: Pass | None) -> None:
        """From now on the `other` pass is waited for, or none."""
        self._pass_ends_at = math.inf if other is None else time.monotonic() + other.seconds

    def _tried(self, rows: list[Row], compute: Callable[[], T], other: Pass | None) -> T | None:
        """What is computed. None where that fails or memory is too small: then the rows have run in two
        halves, and a row that fails alone is refused. The `other` pass goes on.
        """
        why, is_too_large = "", False
        try:
            return compute()
        except torch.AcceleratorError:
            raise  # this process cannot use the device any more
        except Exception as error:
            is_too_large = isinstance(error, torch.OutOfMemoryError | MemoryError)
            why = f"the model refused the row: {type(error).__name__}: {error}"
        self._expect(other)
        # Not earlier: the traceback of the error held the memory of the pass.
        if is_too_large:
            self._budget = self._budget.without_memory(padded(rows))
            torch.cuda.empty_cache()
        if len(rows) > 1:
            self._halves(rows, other)
        else:
            rows[0].batch.end(
                [rows[0].position], [Refusal(RowErrorKind.REFUSED, why, of_library=True)]
            )
        return None

    def _halves(self, rows: list[Row], other: Pass | None) -> None:
        middle = len(rows) // 2
        self._pass(rows[:middle], other)
        self._pass(rows[middle:], other)


def _wanted(rows: list[Row]) -> list[Row]:
    """The rows without those that were withdrawn or whose work was stopped. They begin now."""
    by_batch: dict[Batch, list[Row]] = defaultdict(list)
    for row in rows:
        by_batch[row.batch].append(row)
    unwanted: set[Row] = set()
    for batch, some in by_batch.items():
        withdrawn = batch.work.begin_some([row.row_index for row in some])
        stopped = batch.work.stopped.is_set()
        gone = [row for row in some if stopped or row.row_index in withdrawn]
        unwanted.update(gone)
        if gone:
            batch.leave(len(gone))
    return [row for row in rows if row not in unwanted]
