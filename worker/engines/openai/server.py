"""The remote server: the client that sends to it, does it take the key, does it serve anybody."""

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import structlog
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from nightshift.common import remotes
from nightshift.common.errors import (
    EngineLoadFailed,
    EngineNotHere,
    EngineRefused,
    EngineUnavailable,
)
from nightshift.common.public_text import marked
from nightshift.common.spec import OpenaiEngineSpec
from nightshift.common.text import counted
from nightshift.worker.engines.openai.endpoint import Endpoint, Response
from nightshift.worker.engines.openai.errors import RequestError, redactor, request_error
from nightshift.worker.engines.openai.usage import usage_of
from nightshift.worker.engines.protocol import Request, Usage

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 10.0

NO_KEY = "EMPTY"
"""The key that is sent, by custom, to servers that want none."""


class BlockedAddress(httpx2.ConnectError):
    """The server's name led to a link-local or metadata address; nothing was sent there."""


class Client(AsyncOpenAI):
    """Sends a key to the address it is bound to, and no header that the environment names.

    The library would take organisation, project and further headers from OPENAI_* variables, and
    send them to whatever address a job names. The client follows no redirect, which would carry
    the key away, and retries nothing: the engine does that. A connection to a blocked address ends
    before anything is sent.
    """

    def __init__(self, base_url: str, key: str, connections: int) -> None:
        super().__init__(
            base_url=base_url,
            api_key=key or NO_KEY,
            admin_api_key="",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(
                follow_redirects=False,
                event_hooks={"request": [_watch_connection]},
                limits=httpx2.Limits(
                    max_connections=connections, max_keepalive_connections=connections
                ),
            ),
            # The engine limits the time of the whole request.
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """The headers of a JSON request, with the key."""
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": self.user_agent,
            **self.auth_headers,
        }

    async def send(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """One POST; openai.APIError for another status than 2xx, or no response at all."""
        return await self.post(path, cast_to=httpx2.Response, body=body)

    async def list_models(self) -> httpx2.Response:
        """GET /models: costs nothing, and shows whether the key is good."""
        return await self.get("/models", cast_to=httpx2.Response)


async def _watch_connection(request: httpx2.Request) -> None:
    request.extensions["trace"] = _refuse_blocked_peer


async def _refuse_blocked_peer(event: str, found: dict[str, Any]) -> None:
    """Called by the client's connection pool. A name may lead elsewhere than when it was checked."""
    if event != "connection.connect_tcp.complete":
        return
    stream = found["return_value"]
    peer = str(stream.get_extra_info("server_addr")[0])
    if remotes.is_blocked(peer):
        await stream.aclose()
        raise BlockedAddress(f"its name leads to {peer}, a link-local or metadata address")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long errors of the server are retried.

    Backoff is exponential with full jitter between 0 and `longest_backoff_seconds`.

    The server is judged after `tries` failures, after `limited_tries` answers of "too many requests", after a
    timeout, and after `outage_seconds` without an answer to any row. If the server has answered another
    row meanwhile, or answers a probe, the row fails. If not, a refused key or account pauses the job, a
    timeout or an outage releases the batch, and after any other failure the row is tried again. A 2xx response
    without an answer is paid: after `unusable_tries` of them the row fails, and after `unusable_rows` such rows, with
    no answer to another row since their first requests, the job pauses. A probe may take `probe_seconds`, and its result is valid for `probe_valid_seconds`.
    """

    tries: int = 6
    limited_tries: int = 30
    backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 60.0
    unusable_tries: int = 3
    unusable_rows: int = 5
    outage_seconds: float = 300.0
    probe_seconds: float = 30.0
    probe_valid_seconds: float = 10.0


HELLO = Request(0)
"""The request of a probe, whose answer nobody reads."""

NO_TOKENS = Usage()


@dataclass(slots=True)
class RequestHistory:
    """The tries of one request so far.

    `spent_seconds` is the time in the server, without any queue. `sent_at` is when the latest try
    was sent, `failing_since` when the first one failed (monotonic seconds). `unusable` counts 2xx responses without
    an answer. `usage` is what all requests of the row took. `answers_before` is `Server.answers` of the endpoint as the
    first request was sent.
    """

    spent_seconds: float = 0.0
    tries: int = 0
    limited: int = 0
    sent_at: float = 0.0
    failing_since: float = 0.0
    unusable: int = 0
    usage: Usage = NO_TOKENS
    answers_before: int | None = None


class Server:
    """The remote server of one engine, whose loop alone uses this.

    `answered_at` is when a row last got an answer (monotonic seconds), and `answers` counts the answers by path.
    `ignores_n`: the server returned one sample
    where several were requested. `redact` takes the key out
    of a text.
    """

    def __init__(self, spec: OpenaiEngineSpec, key: str, policy: RetryPolicy) -> None:
        # One connection more than rows have: a probe must not wait behind the rows it is about.
        self.client = Client(spec.base_url, key, spec.concurrency + 1)
        self.redact = redactor(key)
        self.answered_at = 0.0
        self.ignores_n = False
        self.answers: Counter[str] = Counter()
        self._unusable: dict[str, set[int]] = {}
        self._base_url = spec.base_url
        self._has_key = bool(key)
        self._policy = policy
        self._probing = asyncio.Lock()
        self._probed_at = -math.inf
        self._probe_succeeded = False

    async def check_key(self) -> None:
        """EngineLoadFailed for an address that refuses the key, redirects its callers, or is blocked.

        A server that does not answer fails no load: the batches wait out the outage.
        """
        base_url, has = self._base_url, "the key" if self._has_key else "no key"
        try:
            async with asyncio.timeout(self._policy.probe_seconds):
                await self.client.list_models()
        except TimeoutError:
            log.warning("server_away", base_url=base_url, error="no answer in time")
        except openai.APIStatusError as error:
            reason = request_error(error, self.redact)
            if error.status_code < 400:
                raise EngineLoadFailed(
                    f"{base_url} sends its callers elsewhere ({error.status_code}), where no key "
                    "of ours goes: name the address itself in engine.base_url"
                ) from None
            if error.status_code in (401, 403):
                raise EngineNotHere(
                    f"{base_url} refuses this worker, which has {has} for it ({reason}): its "
                    "operator sets keys by address in NIGHTSHIFT_API_KEYS"
                ) from None
            # Any other status is an answer: many servers have no list of models.
        except openai.APIError as error:
            if isinstance(error.__cause__, BlockedAddress):
                raise EngineNotHere(f"{base_url} is not asked: {error.__cause__}") from None
            reason = request_error(error, self.redact)
            log.warning("server_away", base_url=base_url, error=str(reason))

    def answered(self, endpoint: Endpoint) -> None:
        """Record that a row has its answer, or that its body was refused."""
        self.answered_at = time.monotonic()
        self.answers[endpoint.path] += 1
        self._unusable.pop(endpoint.path, None)

    def is_unusable(
        self, endpoint: Endpoint, row_index: int, history: RequestHistory, error: RequestError
    ) -> bool:
        """Return True if the row fails after this 2xx response without an answer, False if it is requested again.

        Raises EngineRefused where several rows have failed so while no other row got an answer: the address or the
        model is not what the spec takes it for. Rows without an answer among rows with one may come last, since
        they are requested again.
        """
        history.unusable += 1
        if history.unusable < self._policy.unusable_tries:
            return False
        if self.answers[endpoint.path] != history.answers_before:
            return True
        rows = self._unusable.setdefault(endpoint.path, set())
        rows.add(row_index)
        if len(rows) < self._policy.unusable_rows:
            return True
        del self._unusable[endpoint.path]
        raise EngineRefused(
            f"{self._base_url} returned no usable answer for {counted(len(rows), 'row')} in a row ({marked(error)}): correct "
            "engine.base_url, engine.model or the server, then resume the job"
        )

    async def is_rows_fault(
        self, endpoint: Endpoint, history: RequestHistory, error: RequestError
    ) -> bool:
        """True when the server serves other rows, False while it is too early to say.

        EngineUnavailable or EngineRefused when the server serves no row.
        """
        now, policy = time.monotonic(), self._policy
        history.failing_since = history.failing_since or now
        history.limited += error.is_limit
        history.tries += not error.is_limit
        silent_seconds = now - max(history.failing_since, self.answered_at)
        is_outage = silent_seconds > policy.outage_seconds
        is_tried = history.tries >= policy.tries or history.limited >= policy.limited_tries
        if not (is_tried or error.is_timeout or is_outage):
            return False
        if self.answered_at > history.sent_at or await self._serves(endpoint, history):
            return True
        if error.needs_person:
            raise EngineRefused(
                f"{self._base_url} refuses this worker's requests ({marked(error)}): correct the key or the "
                "account, then resume the job"
            )
        if error.is_timeout or is_outage:
            raise EngineUnavailable(f"{self._base_url} answers no request: {marked(error)}")
        return False

    async def _serves(self, endpoint: Endpoint, history: RequestHistory) -> bool:
        """Whether the smallest request gets an answer; a refusal of its body is an answer. The row that asks
        pays for the request.
        """
        async with self._probing:
            if time.monotonic() - self._probed_at < self._policy.probe_valid_seconds:
                return self._probe_succeeded
            try:
                body = endpoint.probe()
                async with asyncio.timeout(self._policy.probe_seconds):
                    response = Response.of(await self.client.send(endpoint.path, body))
                history.usage += usage_of(response.data, body)
                # A page of a proxy is no answer, whatever its status.
                self._probe_succeeded = not isinstance(
                    endpoint.parsed(response, HELLO), RequestError
                )
            except (openai.APIError, TimeoutError) as error:
                status = getattr(error, "status_code", None)
                self._probe_succeeded = status in (400, 413, 422)
            self._probed_at = time.monotonic()
            log.info("probed", serves=self._probe_succeeded)
            return self._probe_succeeded
