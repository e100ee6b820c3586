"""The remote engine: requests of every batch of a child, side by side, to one server.

A row is asked again until it has an answer or the row is to blame. The server is to blame, and
the batch is given back, when neither another row nor the smallest request of all gets through.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

import openai
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from nightshift.common import remotes
from nightshift.common.errors import BadInput, EngineNotHere
from nightshift.common.ledger.fleet.outages import Kind
from nightshift.common.public_text import marked
from nightshift.common.settings import Settings
from nightshift.common.spec import GenerateTask, OpenaiEngineSpec, Task
from nightshift.common.spec.tasks.sampling import THINKING_TOKENS
from nightshift.common.states import BY_SERVER
from nightshift.worker.engines.images import BatchReads, Reads
from nightshift.worker.engines.loop_thread import LoopThread, cancel_tasks, run_rows
from nightshift.worker.engines.openai.endpoint import Body, Endpoint, Response
from nightshift.worker.engines.openai.errors import RequestError, request_error, spent_limit
from nightshift.worker.engines.openai.limiter import Limiter, Rates, Reservation
from nightshift.worker.engines.openai.requests import endpoint_for
from nightshift.worker.engines.openai.server import RequestHistory, RetryPolicy, Server
from nightshift.worker.engines.openai.usage import (
    estimated_tokens,
    is_counted,
    sent_usage,
    usage_of,
)
from nightshift.worker.engines.protocol import (
    Outcome,
    Refusal,
    Request,
    Usage,
    Work,
    timed_out,
    with_usage,
)
from nightshift.worker.engines.resampling import (
    UNSAMPLED,
    RowSampling,
    sample_of,
    sample_until_valid,
)
from nightshift.worker.telemetry.stage import Stage

TICK_SECONDS = 1.0
"""How often the loop shows that it lives: every request has its own end, so only it can stall."""

CLOSE_SECONDS = 5.0

WAIT_HOLD_SECONDS = 15.0
"""Beyond a pause that is known, a wait is heard of again within this time, or is over."""

MakeBody = Callable[[], Awaitable[Body]]
"""Makes the body of a row anew for each try: no row that waits holds a body, which has megabytes
where it has images.
"""


class OpenaiEngine:
    """`concurrency` requests under way at once; a row's time runs only while its own is."""

    name = "openai"
    version = openai.__version__
    revision: str | None = None
    cache_tokens: int | None = None
    code: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, spec: OpenaiEngineSpec, settings: Settings, policy: RetryPolicy | None = None
    ) -> None:
        """Asks whether the server takes the key; EngineNotHere if it does not."""
        try:
            remotes.check(spec.base_url, settings.allowed_remotes)
            key = settings.api_key(spec.base_url)
        except BadInput as error:
            raise EngineNotHere(marked(error)) from error
        if settings.broker_url is None and (spec.requests_per_minute or spec.tokens_per_minute):
            raise EngineNotHere(
                "a rate of the whole fleet is held in Redis: set NIGHTSHIFT_BROKER_URL, or leave "
                "engine.requests_per_minute and engine.tokens_per_minute out"
            )
        self.concurrency = spec.concurrency
        self._spec = spec
        self._allowed_models = settings.allowed_models
        self._policy = policy or RetryPolicy()
        self._reads = Reads()
        self._places = asyncio.Semaphore(self.concurrency)
        self._server = Server(spec, "" if key is None else key.get_secret_value(), self._policy)
        rates = Rates(spec.requests_per_minute, spec.tokens_per_minute)
        name = f"{remotes.address(spec.base_url)} {spec.model}"
        self._limiter = Limiter(settings.broker_url, name, uuid.uuid4().hex, rates)
        self._ticked_at = time.monotonic()
        self._loop_thread = LoopThread()
        self._loop_thread.loop.call_soon_threadsafe(self._tick)
        try:
            self._loop_thread.run(self._server.check_key())
        except BaseException:
            self.close()
            raise

    def resolve(self, task: Task) -> Mapping[str, Any]:
        """What is fixed for a job. The server itself says which part of an answer is a thought, since only the
        server knows its model. Where the job turns thinking on and names no longest answer, that of a model that
        thinks counts.
        """
        if not isinstance(task, GenerateTask):
            return {}
        is_long = task.thinking == "on" and not task.sampling.has_max_tokens
        return {"thinking": BY_SERVER, "max_tokens": THINKING_TOKENS if is_long else None}

    def start(self, work: Work) -> "Future[None]":
        """Sends every request as soon as there is a place and the rate allows it.

        The future's exception is EngineUnavailable or EngineRefused when the server serves nobody,
        StorageUnavailable when a store of images was away: rows that were answered stay answered.
        """
        resolved = self.resolve(work.task) if work.resolved is None else work.resolved
        endpoint = endpoint_for(work.task, self._spec, self._allowed_models, resolved)
        reads = BatchReads(self._reads)
        rows = run_rows(
            work,
            enumerate(work.requests),
            lambda request, _: self._answer(work, endpoint, reads, request),
            lambda why: self._server.redact(f"the row cannot be sent: {why}"),
        )
        batch = self._loop_thread.submit(rows)
        work.on_stop(batch.cancel)
        return batch

    def stalled_seconds(self) -> float:
        """Seconds since the loop last turned, where that is more than it may take."""
        silent = time.monotonic() - self._ticked_at
        return silent if silent > 2 * TICK_SECONDS else 0.0

    def close(self) -> None:
        """Cancels the requests under way and ends the loop thread."""
        with suppress(TimeoutError):
            self._loop_thread.run(self._disconnect(), CLOSE_SECONDS)
        self._reads.close()
        self._loop_thread.close(CLOSE_SECONDS)

    async def _disconnect(self) -> None:
        await cancel_tasks()
        await self._server.client.close()
        await self._limiter.close()

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._loop_thread.loop.call_later(TICK_SECONDS, self._tick)

    async def _answer(
        self, work: Work, endpoint: Endpoint, reads: BatchReads, request: Request
    ) -> Outcome:
        """The row's outcome.

        EngineUnavailable and EngineRefused when it is not the row's fault that there is none.
        """
        asked_at = work.recorder.clock()
        history = RequestHistory()

        async def make_body(sampling: RowSampling) -> Body:
            make = partial(endpoint.body, request, sampling)
            if isinstance(work.task, GenerateTask) and work.task.image_columns:
                # Images are read from their stores, for which the loop must not wait.
                return await reads.run(make)
            return make()

        async def sample_once(sampling: RowSampling) -> Sequence[Outcome]:
            nonlocal history
            samples: list[Outcome] = []
            while len(samples) < sampling.n:
                drawn = sampling
                if samples or self._server.ignores_n:
                    drawn = sample_of(sampling, len(samples))
                history = RequestHistory(history.spent_seconds, usage=history.usage)
                make = partial(make_body, drawn)
                found = await self._persist(work, request, endpoint, make, history)
                if isinstance(found, Refusal):
                    return [*samples, *[found] * (sampling.n - len(samples))]
                if len(found) == 1 < drawn.n:
                    self._server.ignores_n = True
                samples += found
            return samples

        try:
            if isinstance(work.task, GenerateTask):
                outcome = await sample_until_valid(work.task, request, sample_once)
            else:
                (outcome,) = await sample_once(UNSAMPLED)
        except BaseException:
            work.spend(history.usage)
            raise
        queued = work.recorder.clock() - asked_at - history.spent_seconds
        work.recorder.stage_passed(Stage.QUEUE, max(0.0, queued))
        return with_usage(outcome, history.usage.in_a_row)

    async def _persist(
        self,
        work: Work,
        request: Request,
        endpoint: Endpoint,
        make_body: MakeBody,
        history: RequestHistory,
    ) -> Sequence[Outcome] | Refusal:
        """Sends the request until there is an answer, or the row or the server is to blame; the outcome of
        each sample, or why the whole request has none.
        """

        async def send_once() -> Sequence[Outcome] | Refusal:
            outcome = await self._try(work, request, endpoint, make_body, history)
            if not isinstance(outcome, RequestError):
                return outcome
            server = self._server
            if outcome.is_answered:
                is_over = server.is_unusable(endpoint, request.row_index, history, outcome)
            else:
                is_over = outcome.is_final or await server.is_rows_fault(endpoint, history, outcome)
            if is_over:
                return endpoint.refusal(outcome)
            work.recorder.waits(
                Kind.RATE if outcome.is_limit else Kind.SERVER,
                None,
                f"{self._spec.base_url}: {outcome}",
                self._policy.longest_backoff_seconds + WAIT_HOLD_SECONDS,
            )
            raise outcome

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RequestError),
            wait=wait_random_exponential(
                multiplier=self._policy.backoff_seconds,
                max=self._policy.longest_backoff_seconds,
            ),
        )
        return await retrying(send_once)

    async def _try(
        self,
        work: Work,
        request: Request,
        endpoint: Endpoint,
        make_body: MakeBody,
        history: RequestHistory,
    ) -> Sequence[Outcome] | RequestError:
        """Sends the request once; its outcomes, or the error in place of one.

        The error is returned and not raised: its traceback would hold the body for as long as the
        row waits for its next try.
        """

        def waiting() -> None:
            why = f"requests to {self._spec.base_url} wait for their rate, or for a pause that it asked for"
            work.recorder.waits(Kind.RATE, None, why, WAIT_HOLD_SECONDS)

        async with self._places:
            if not work.begin(request.row_index):
                raise asyncio.CancelledError
            body = await make_body()
            reservation = await self._limiter.admit(estimated_tokens(body), waiting)
            work.recorder.rows_entered()
            history.sent_at = began = time.monotonic()
            if history.answers_before is None:
                history.answers_before = self._server.answers[endpoint.path]
            try:
                async with asyncio.timeout(work.row_timeout_seconds - history.spent_seconds):
                    response = await self._server.client.send(endpoint.path, body)
            except asyncio.CancelledError:
                history.usage += sent_usage(body)
                raise
            except TimeoutError:
                # The reservation stays: the server may have used the tokens.
                history.usage += sent_usage(body)
                history.spent_seconds = 0.0
                late = timed_out(work)
                return RequestError(late.message, kind=late.kind, is_timeout=True)
            except openai.APIError as error:
                history.spent_seconds += time.monotonic() - began
                refused = request_error(error, self._server.redact)
                return await self._refused(reservation, endpoint, body, history, refused)
            finally:
                work.recorder.rows_left()
            history.spent_seconds += time.monotonic() - began
        answer = Response.of(response)
        used = usage_of(answer.data, body)
        history.usage += used
        await self._limiter.correct(reservation, used.prompt_tokens + used.output_tokens)
        if (pause := spent_limit(response.headers)) is not None:
            await self._limiter.pause(pause)
        outcomes = endpoint.parsed(answer, request)
        if isinstance(outcomes, RequestError):
            return outcomes.redacted(self._server.redact)
        self._server.answered(endpoint)
        # An admitted request may be refused again: an answer alone ends what was waited for.
        for kind in (Kind.SERVER, Kind.RATE):
            work.recorder.went_on(kind, None)
        return outcomes

    async def _refused(
        self,
        reservation: Reservation,
        endpoint: Endpoint,
        body: Body,
        history: RequestHistory,
        error: RequestError,
    ) -> RequestError:
        """Gives the tokens back that the server did not count, and pauses the whole fleet if the server is over
        its limit.
        """
        if error.status is not None:
            data = None if error.body is None else json.loads(error.body)
            used = usage_of(data, body) if is_counted(data) else Usage()
            history.usage += used
            await self._limiter.correct(reservation, used.prompt_tokens + used.output_tokens)
        if error.is_final:
            self._server.answered(endpoint)
        if error.pause_seconds is not None:
            await self._limiter.pause(error.pause_seconds)
        elif error.is_limit:  # the server did not say for how long
            await self._limiter.pause(self._policy.backoff_seconds / 2)
        return error
