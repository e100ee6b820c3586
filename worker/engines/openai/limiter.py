"""The rate that a fleet holds towards one model of one server: a token bucket in Redis.

For each of its two rates (requests, tokens) a bucket keeps the time until which the rate is spent (the
"theoretical arrival time" of ATM's generic cell rate algorithm). A request is sent when neither time is
ahead. The request then moves each time on by its cost at the rate of its own job: jobs with different
rates share one bucket.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)

BURST_SECONDS = 1.0
"""How much an idle bucket saves up: servers also count over less than a minute."""

MEMBER_SECONDS = 60.0
"""A child that has sent nothing for this time has no share of the rate."""

MAX_SLEEP_SECONDS = 5.0
"""Longest sleep before the bucket is asked again: meanwhile a pause may have become longer, or
reserved tokens may have been returned."""

REDIS_TIMEOUT_SECONDS = 2.0
"""A Redis that does not answer within this time counts as away."""

REDIS_RETRY_SECONDS = 5.0
"""Pause before a Redis that is away is asked again."""

MAX_PAUSE_SECONDS = 300.0
"""Longest pause that one response of a server can cause."""

RATIO_WEIGHT = 0.05
"""Weight of the newest request in the mean of used over estimated tokens."""

ADMIT = f"""
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local burst, requests, tokens = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - {MEMBER_SECONDS})
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('EXPIRE', KEYS[2], {2 * MEMBER_SECONDS:.0f})
local members = redis.call('ZCARD', KEYS[2])
local held = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'pause')
local requests_at, tokens_at = tonumber(held[1] or 0), tonumber(held[2] or 0)
local wait = tonumber(held[3] or 0) - now
if requests > 0 then wait = math.max(wait, requests_at - now) end
if tokens > 0 then wait = math.max(wait, tokens_at - now) end
if wait > 0 then return {{math.ceil(wait * 1000), members}} end
if requests > 0 then
  redis.call('HSET', KEYS[1], 'requests', math.max(requests_at, now - burst) + requests)
end
if tokens > 0 then
  redis.call('HSET', KEYS[1], 'tokens', math.max(tokens_at, now - burst) + tokens)
end
redis.call('EXPIRE', KEYS[1], 3600)
return {{0, members}}
"""
"""KEYS: bucket, members. ARGV: member, burst, and the seconds of each bucket that the request takes
(0: no such rate). Returns the wait in milliseconds, 0 where it was admitted, and the members."""

PAUSE = """
local clock = redis.call('TIME')
local ends = tonumber(clock[1]) + tonumber(clock[2]) / 1e6 + tonumber(ARGV[1])
if tonumber(redis.call('HGET', KEYS[1], 'pause') or 0) < ends then
  redis.call('HSET', KEYS[1], 'pause', ends)
end
redis.call('EXPIRE', KEYS[1], 3600)
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests and tokens a minute; None for no such limit."""

    requests: int | None = None
    tokens: int | None = None

    def seconds(self, tokens: float) -> tuple[float, float]:
        """Seconds of a minute's rate that one request of so many tokens takes, of each bucket."""
        return (
            60 / self.requests if self.requests else 0.0,
            60 * tokens / self.tokens if self.tokens else 0.0,
        )


@dataclass(slots=True)
class LocalBucket:
    """The same bucket in this process, used while Redis is away (monotonic seconds)."""

    requests_at: float = -math.inf
    tokens_at: float = -math.inf

    def admit(self, now: float, requests: float, tokens: float) -> float:
        """Seconds to wait; 0 where the request was admitted and its cost reservation."""
        wait = max(
            self.requests_at - now if requests else 0.0, self.tokens_at - now if tokens else 0.0
        )
        if wait > 0:
            return wait
        self.requests_at = max(self.requests_at, now - BURST_SECONDS) + requests
        self.tokens_at = max(self.tokens_at, now - BURST_SECONDS) + tokens
        return 0.0


@dataclass(slots=True)
class Reservation:
    """Tokens that were taken for a request before it was sent."""

    estimate: float
    reserved: float
    is_local: bool = False


class Limiter:
    """Admits requests at the rate of the fleet, one at a time; for one event loop.

    While Redis is away, a child sends at its share: the rate over the number of children that Redis
    counted in the minute before. A child that Redis did not count waits, so that the fleet is never
    above its rate. `_members` is the latest count, `_counted_at` its time.
    """

    def __init__(self, url: str | None, name: str, member: str, rates: Rates) -> None:
        """A limiter over the Redis at `url`; without a URL, a limiter of this process alone."""
        self.rates = rates
        self.name = f"nightshift:rate:{{{name}}}"
        self.member = member
        self.client: Any = None
        self._local = LocalBucket()
        self._members = 1
        self._counted_at = self._paused_until = self._retry_at = -math.inf
        self._away_since: float | None = None
        self._turn = asyncio.Lock()
        self._ratio = 1.0
        if url is not None:
            self.client = redis.asyncio.Redis.from_url(
                url,
                socket_timeout=None,
                socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
            self._admit = self.client.register_script(ADMIT)
            self._pause = self.client.register_script(PAUSE)

    async def admit(
        self, estimate: float, waiting: Callable[[], None] = lambda: None
    ) -> Reservation:
        """Waits until a request of about `estimate` tokens may be sent, and reserves its tokens; calls
        `waiting` before each sleep.

        The reservation is the estimate times the mean of used over estimated tokens.
        """
        async with self._turn:  # requests are admitted in the order in which they came
            reservation = Reservation(estimate, estimate * self._ratio)
            while (wait := await self._wait(reservation)) > 0:
                waiting()
                # A random factor, so that not all children ask at the same moment.
                await asyncio.sleep(min(wait, MAX_SLEEP_SECONDS) * random.uniform(1.0, 1.05))
        return reservation

    async def correct(self, reservation: Reservation, used: int) -> None:
        """Returns tokens that were reserved and not used, or takes tokens that were used and not reserved."""
        if reservation.estimate > 0 and used > 0:
            self._ratio += RATIO_WEIGHT * (used / reservation.estimate - self._ratio)
        _, seconds = self.rates.seconds(used - reservation.reserved)
        if not seconds:
            return
        if reservation.is_local:
            self._local.tokens_at += seconds * self._members
        else:
            await self._ask_redis(lambda: self._move_tokens(seconds))

    async def pause(self, seconds: float) -> None:
        """No child of the fleet sends anything for `seconds`: the server asked for this pause."""
        seconds = min(seconds, MAX_PAUSE_SECONDS)
        if seconds <= 0:
            return
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)
        await self._ask_redis(lambda: self._pause(keys=[self.name], args=[seconds]))

    async def close(self) -> None:
        """Closes the connections to Redis."""
        if self.client is not None:
            await self.client.aclose()

    async def _wait(self, reservation: Reservation) -> float:
        """Seconds to wait before the next try; 0 where the request may be sent."""
        now = time.monotonic()
        if self._paused_until > now:
            return self._paused_until - now
        requests, tokens = self.rates.seconds(reservation.reserved)
        answer = await self._ask_redis(
            lambda: self._admit(
                keys=[self.name, f"{self.name}:members"],
                args=[self.member, BURST_SECONDS, requests, tokens],
            )
        )
        if answer is not None:
            milliseconds, members = answer
            self._members, self._counted_at = max(1, members), time.monotonic()
            self._away_since = None
            return float(milliseconds) / 1000
        if self.rates == Rates():
            return 0.0
        away_since = now if self._away_since is None else self._away_since
        if self.client is not None and away_since - self._counted_at >= MEMBER_SECONDS:
            return REDIS_RETRY_SECONDS
        reservation.is_local = True
        return self._local.admit(time.monotonic(), requests * self._members, tokens * self._members)

    async def _move_tokens(self, seconds: float) -> None:
        async with self.client.pipeline(transaction=False) as both:
            await both.hincrbyfloat(self.name, "tokens", seconds).expire(self.name, 3600).execute()

    async def _ask_redis(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """The answer of Redis; None without Redis, and while Redis is away."""
        if self.client is None or time.monotonic() < self._retry_at:
            return None
        try:
            # The client's own timeout is `asyncio.wait_for`, which before Python 3.12 loses a
            # cancel that comes just as the wait ends: a stopped row would go on.
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                return await command()
        except (RedisError, OSError) as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("limiter_away", error=type(error).__name__)
            self._retry_at = time.monotonic() + REDIS_RETRY_SECONDS
            return None
