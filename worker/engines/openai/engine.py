"""The remote engine: requests of every batch of a child, side by side, to one server.

A row is asked again until it has an answer or the row is to blame. The server is to blame, and
the batch is given back, when neither another row nor the smallest request of all gets through.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import httpx2
import openai
import structlog
from pydantic import SecretStr
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from nightshift.common import remotes
from nightshift.common.errors import (
    BadInput,
    EngineLoadFailed,
    EngineRefused,
    EngineUnavailable,
    StorageUnavailable,
)
from nightshift.common.settings import Settings
from nightshift.common.spec import GenerateTask, OpenaiEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.openai.client import Client
from nightshift.worker.engines.openai.errors import Censor, TroubleError, of_error, spent_limit
from nightshift.worker.engines.openai.limiter import Limiter, Rates, Reservation
from nightshift.worker.engines.openai.requests import ONCE, Asker, asker_of, estimated_tokens
from nightshift.worker.engines.protocol import Outcome, Refusal, Request, Work
from nightshift.worker.engines.resampling import Try, answered
from nightshift.worker.rows.images import BadImage, BatchReads, Reads
from nightshift.worker.telemetry.recorder import Stage

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
"""How often the loop shows that it lives: every request has its own end, so only it can stall."""

CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long trouble is borne.

    Backoff is exponential with full jitter between 0 and `longest_backoff_seconds`. After `tries`
    failures, or `limited_tries` answers of "too many requests", somebody is to blame; after
    `outage_seconds` in which nobody got through, the batch is given back. A probe may take
    `probe_seconds`, and what it found is believed for `believed_seconds`.
    """

    tries: int = 6
    limited_tries: int = 30
    backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 60.0
    outage_seconds: float = 300.0
    probe_seconds: float = 30.0
    believed_seconds: float = 10.0


PATIENCE = Patience()

Sent = tuple[dict[str, Any], float]
"""A body, and the tokens that it may use."""


@dataclass(slots=True)
class Asked:
    """What one row has been through; `spent_seconds` in the server alone, not in any queue.

    `sent` makes its body, anew for each try: with images it has megabytes, which no row holds
    that only waits. `sent_at` is when its latest request went out, `failing_since` when the first failed (monotonic
    seconds).
    """

    sent: Callable[[], Awaitable[Sent]]
    spent_seconds: float = 0.0
    tries: int = 0
    limited: int = 0
    sent_at: float = 0.0
    failing_since: float = 0.0


class OpenaiEngine:
    """`concurrency` requests under way at once; a row's time runs only while its own is."""

    name = "openai"
    version = openai.__version__
    revision: str | None = None

    def __init__(
        self,
        spec: OpenaiEngineSpec,
        key: SecretStr | None,
        broker_url: str | None,
        patience: Patience = PATIENCE,
    ) -> None:
        self.concurrency = spec.concurrency
        self._spec = spec
        self._patience = patience
        self._has_key = key is not None
        secret = "" if key is None else key.get_secret_value()
        self._censor = Censor(secret)
        self._reads = Reads()
        self._answered_at = 0.0
        self._probed_at, self._probed_well = float("-inf"), False
        self._ticked_at = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="engine-loop", daemon=True
        )
        self._thread.start()
        self._on_loop(self._open(secret, broker_url))

    @classmethod
    def load(
        cls, spec: OpenaiEngineSpec, settings: Settings, patience: Patience = PATIENCE
    ) -> Self:
        """Looks whether the server takes the key; EngineLoadFailed if it does not.

        A server that is away fails no load: that is an outage, which the batches wait out.
        """
        try:
            remotes.check(spec.base_url, settings.allowed_remotes)
            key = settings.api_key(spec.base_url)
        except BadInput as error:
            raise EngineLoadFailed(str(error)) from error
        if settings.broker_url is None and (spec.requests_per_minute or spec.tokens_per_minute):
            raise EngineLoadFailed(
                "a rate of the whole fleet is held in Redis: set NIGHTSHIFT_BROKER_URL, or leave "
                "engine.requests_per_minute and engine.tokens_per_minute out"
            )
        engine = cls(spec, key, settings.broker_url, patience)
        try:
            engine._on_loop(engine._look())
        except BaseException:
            engine.close()
            raise
        return engine

    def start(self, work: Work) -> "Future[None]":
        """Sends every request as soon as there is a place and the rate allows it.

        The future's exception is EngineUnavailable or EngineRefused when the server serves nobody,
        StorageUnavailable when a store of images was away: rows that were answered stay answered.
        """
        asker = asker_of(work.task, self._spec)
        batch = asyncio.run_coroutine_threadsafe(self._all(work, asker), self._loop)
        work.on_stop(batch.cancel)
        return batch

    def stalled_seconds(self) -> float:
        """Seconds since the loop last turned, where that is more than it may take."""
        silent = time.monotonic() - self._ticked_at
        return silent if silent > 2 * TICK_SECONDS else 0.0

    def close(self) -> None:
        """Breaks off what is under way and ends the loop thread."""
        with suppress(TimeoutError):
            self._on_loop(self._shut(), CLOSE_SECONDS)
        self._reads.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _on_loop(self, coroutine: Coroutine[Any, Any, None], seconds: float | None = None) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    async def _open(self, secret: str, broker_url: str | None) -> None:
        self._places = asyncio.Semaphore(self.concurrency)
        self._probing = asyncio.Lock()
        # One place more than rows have: a probe must not stand behind those it is about.
        self._client = Client(self._spec.base_url, secret, self.concurrency + 1)
        rates = Rates(self._spec.requests_per_minute, self._spec.tokens_per_minute)
        name = f"{remotes.address(self._spec.base_url)} {self._spec.model}"
        self._limiter = Limiter.connected(broker_url, name, uuid.uuid4().hex, rates)
        self._tick()

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()
        await self._limiter.close()

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._loop.call_later(TICK_SECONDS, self._tick)

    async def _look(self) -> None:
        """EngineLoadFailed for an address that refuses the key, or sends its callers elsewhere."""
        where, has = self._spec.base_url, "the key" if self._has_key else "no key"
        try:
            async with asyncio.timeout(self._patience.probe_seconds):
                await self._client.look()
        except TimeoutError:
            log.warning("server_away", base_url=where, error="no answer in time")
        except openai.APIStatusError as error:
            trouble = of_error(error, self._censor)
            if error.status_code < 400:
                raise EngineLoadFailed(
                    f"{where} sends its callers elsewhere ({error.status_code}), where no key of "
                    "ours goes: name the address itself in engine.base_url"
                ) from None
            if error.status_code in (401, 403):
                raise EngineLoadFailed(
                    f"{where} refuses this worker, which has {has} for it ({trouble}): its "
                    "operator sets keys by address in NIGHTSHIFT_API_KEYS"
                ) from None
            # Anything else is an answer: many servers have no list of models.
        except openai.APIError as error:
            log.warning("server_away", base_url=where, error=str(of_error(error, self._censor)))

    async def _all(self, work: Work, asker: Asker) -> None:
        began_at = work.profile.clock()
        count = 0
        reads = BatchReads(self._reads)
        rows = [
            asyncio.create_task(self._one(work, asker, reads, position))
            for position in range(len(work.requests))
        ]
        try:
            outages = await asyncio.gather(*rows)
            count = 1
        finally:
            for row in rows:  # the first that finds nobody to ask speaks for all
                row.cancel()
            await asyncio.gather(*rows, return_exceptions=True)
            work.profile.add(Stage.INFER, work.profile.clock() - began_at, count=count)
        for outage in filter(None, outages):
            raise outage

    async def _one(
        self, work: Work, asker: Asker, reads: BatchReads, position: int
    ) -> StorageUnavailable | None:
        """Emits the row's outcome; returns why it has none yet when a store of its was away."""
        asked_at = work.profile.clock()
        seconds = 0.0
        try:
            outcome, seconds = await self._answer(work, asker, reads, work.requests[position])
        except EngineUnavailable:
            raise
        except StorageUnavailable as error:
            return error
        except BadImage as error:
            outcome = Refusal(RowErrorKind.RENDER_ERROR, str(error))
        except Exception as error:  # whatever one row provokes stays with that row
            outcome = Refusal(
                RowErrorKind.REFUSED,
                self._censor(f"the row cannot be sent: {type(error).__name__}: {error}"),
            )
        work.profile.add(Stage.QUEUE, max(0.0, work.profile.clock() - asked_at - seconds))
        work.emit(position, outcome)
        return None

    async def _answer(
        self, work: Work, asker: Asker, reads: BatchReads, request: Request
    ) -> tuple[Outcome, float]:
        """The row's outcome, and the seconds that it spent in the server.

        EngineUnavailable and EngineRefused when it is not the row's fault that there is none.
        """
        spent_seconds = 0.0

        async def sent(how: Try) -> Sent:
            if isinstance(work.task, GenerateTask) and work.task.image_columns:
                # They are read from their stores, for which the loop must not wait.
                return await reads.run(partial(_sent, asker, request, how))
            return _sent(asker, request, how)

        async def once(how: Try) -> Outcome:
            nonlocal spent_seconds
            asked = Asked(partial(sent, how), spent_seconds)
            outcome = await self._persist(work, asker, asked)
            spent_seconds = asked.spent_seconds
            return outcome

        if isinstance(work.task, GenerateTask):
            return await answered(work.task, request.row_index, once), spent_seconds
        return await once(ONCE), spent_seconds

    async def _persist(self, work: Work, asker: Asker, asked: Asked) -> Outcome:
        """Asks until there is an answer, or somebody to blame."""

        async def once() -> Outcome:
            got = await self._try(work, asker, asked)
            if not isinstance(got, TroubleError):
                return got
            if got.is_final or await self._is_rows_fault(asker, asked, got):
                return asker.refusal(got)
            raise got

        tries = AsyncRetrying(
            retry=retry_if_exception_type(TroubleError),
            wait=wait_random_exponential(
                multiplier=self._patience.backoff_seconds,
                max=self._patience.longest_backoff_seconds,
            ),
        )
        return await tries(once)

    async def _try(self, work: Work, asker: Asker, asked: Asked) -> Outcome | TroubleError:
        """One request and its outcome, or why it got none: an exception that was raised here would
        keep the body for as long as the row waits for its next try.
        """
        async with self._places:
            body, tokens = await asked.sent()
            taken = await self._limiter.admit(tokens)
            work.profile.engine.enter()
            asked.sent_at = began = time.monotonic()
            try:
                async with asyncio.timeout(work.row_timeout_seconds - asked.spent_seconds):
                    response = await self._client.ask(asker.path, body)
            except TimeoutError:
                # Its tokens stay taken: the server may have used them.
                asked.spent_seconds = 0.0
                return TroubleError(
                    f"no answer within row_timeout_seconds {work.row_timeout_seconds:g}",
                    kind=RowErrorKind.TIMEOUT,
                    is_timeout=True,
                )
            except openai.APIError as error:
                asked.spent_seconds += time.monotonic() - began
                return await self._refused(taken, of_error(error, self._censor))
            finally:
                work.profile.engine.leave()
            asked.spent_seconds += time.monotonic() - began
        outcome = _outcome(asker, response)
        if isinstance(outcome, TroubleError):
            return outcome
        self._answered_at = time.monotonic()
        if used := outcome.prompt_tokens + outcome.output_tokens:
            await self._limiter.settle(taken, used)
        if (pause := spent_limit(response.headers)) is not None:
            await self._limiter.pause(pause)
        return outcome

    async def _refused(self, taken: Reservation, trouble: TroubleError) -> TroubleError:
        """What one was told holds for everybody; without a word of the server, a moment's rest."""
        if trouble.status is not None:
            await self._limiter.settle(taken, 0)
        if trouble.is_final:
            self._answered_at = time.monotonic()
        if trouble.pause_seconds is not None:
            await self._limiter.pause(trouble.pause_seconds)
        elif trouble.is_limit:
            await self._limiter.pause(self._patience.backoff_seconds / 2)
        return trouble

    async def _is_rows_fault(self, asker: Asker, asked: Asked, trouble: TroubleError) -> bool:
        """True when the server serves others, False while it is too early to say.

        EngineUnavailable or EngineRefused once it serves nobody.
        """
        now, patience = time.monotonic(), self._patience
        asked.failing_since = asked.failing_since or now
        asked.limited += trouble.is_limit
        asked.tries += not trouble.is_limit
        nobody_for = now - max(asked.failing_since, self._answered_at)
        is_tried = asked.tries >= patience.tries or asked.limited >= patience.limited_tries
        if not (is_tried or trouble.is_timeout or nobody_for > patience.outage_seconds):
            return False
        if self._answered_at > asked.sent_at or await self._serves(asker):
            return True
        where = self._spec.base_url
        if trouble.needs_person:
            raise EngineRefused(
                f"{where} refuses this worker's requests ({trouble}): mend the key or the account, "
                "then resume the job"
            )
        if trouble.is_timeout or nobody_for > patience.outage_seconds:
            raise EngineUnavailable(f"{where} serves nobody: {trouble}")
        return False

    async def _serves(self, asker: Asker) -> bool:
        """Whether the smallest request gets an answer, be it that the server does not like it."""
        async with self._probing:
            if time.monotonic() - self._probed_at < self._patience.believed_seconds:
                return self._probed_well
            try:
                async with asyncio.timeout(self._patience.probe_seconds):
                    response = await self._client.ask(asker.path, asker.probe())
                # A page of a proxy is no answer, whatever its status.
                self._probed_well = not isinstance(_outcome(asker, response), TroubleError)
            except (openai.APIError, TimeoutError) as error:
                status = getattr(error, "status_code", None)
                self._probed_well = status in (400, 413, 422)
            self._probed_at = time.monotonic()
            log.info("probed", serves=self._probed_well)
            return self._probed_well


def _sent(asker: Asker, request: Request, how: Try) -> Sent:
    body = asker.body(request, how)
    return body, estimated_tokens(body)


def _outcome(asker: Asker, response: httpx2.Response) -> Outcome | TroubleError:
    """What a 2xx says of its row; TroubleError when it says nothing that the API knows."""
    try:
        return asker.outcome(
            response.text, response.status_code, response.headers.get("x-request-id")
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        return TroubleError(
            f"the server's answer is none of the OpenAI API ({type(error).__name__}: {error})"
        )
