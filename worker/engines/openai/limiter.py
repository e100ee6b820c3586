"""The rate that a fleet holds towards one model of one server: a token bucket in Redis.

A bucket is one number, the time up to which its rate is used up (the "theoretical arrival time" of
ATM's generic cell rate algorithm). A request goes when that time is not ahead, and moves it on by
what the request costs at the rate of its own job: jobs with different rates share one minute.
"""

import asyncio
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any, Self

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)

BURST_SECONDS = 1.0
"""What an idle bucket saves up: servers count over less than their minute, too."""

MEMBER_SECONDS = 60.0
"""A child that has not asked for so long takes no share of the rate."""

LOOK_SECONDS = 5.0
"""Longest sleep before the bucket is asked again: a pause may have been lengthened or the rate
given back meanwhile."""

ANSWER_SECONDS = 2.0
"""Redis silent for so long counts as away."""

AGAIN_SECONDS = 5.0
"""A Redis that is away is asked again after so long."""

MOST_PAUSE_SECONDS = 300.0
"""Longest pause that one answer of a server can ask for."""

LEARNING = 0.05
"""Weight of the newest answer in the mean of used over reserved tokens."""

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
    """Requests and tokens a minute; None is no such limit."""

    requests: int | None = None
    tokens: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is a rate to hold."""
        return self.requests is not None or self.tokens is not None

    def seconds(self, tokens: float) -> tuple[float, float]:
        """How much of the minute one request of so many tokens takes, of each bucket."""
        return (
            60 / self.requests if self.requests else 0.0,
            60 * tokens / self.tokens if self.tokens else 0.0,
        )


@dataclass(slots=True)
class LocalBucket:
    """The same bucket in this process, for the time in which Redis is away (monotonic seconds)."""

    requests_at: float = -math.inf
    tokens_at: float = -math.inf

    def admit(self, now: float, requests: float, tokens: float) -> float:
        """Seconds to wait; 0 where the request was admitted and paid for."""
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
    """Tokens that were taken for a request before anybody knew what it would use."""

    estimate: float
    reserved: float
    is_local: bool = False


@dataclass(slots=True)
class Fleet:
    """What this child knows of the others: how many there are, by the bucket's own count."""

    members: int = 1
    heard_at: float = -math.inf
    away_since: float | None = None

    def hear(self, members: int) -> None:
        """Redis answered."""
        self.members, self.heard_at, self.away_since = max(1, members), time.monotonic(), None

    def miss(self) -> None:
        """Redis did not answer."""
        if self.away_since is None:
            self.away_since = time.monotonic()

    @property
    def is_counted(self) -> bool:
        """Whether the others counted this child when Redis went away."""
        since = time.monotonic() if self.away_since is None else self.away_since
        return since - self.heard_at < MEMBER_SECONDS


@dataclass(slots=True)
class Limiter:
    """Lets requests go at the rate of the fleet, one at a time; for one event loop.

    With Redis away a child goes on at its share, by the number of children that asked in the last
    minute before; a child that Redis never counted waits, so the fleet is never above its rate.
    """

    rates: Rates
    name: str
    member: str
    client: Any = None
    _admit: Any = None
    _pause: Any = None
    _local: LocalBucket = field(default_factory=LocalBucket)
    _fleet: Fleet = field(default_factory=Fleet)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _paused_until: float = -math.inf
    _ask_at: float = -math.inf
    _ratio: float = 1.0

    @classmethod
    def connected(cls, url: str | None, name: str, member: str, rates: Rates) -> Self:
        """A limiter over the Redis at `url`; without one it knows this process alone."""
        limiter = cls(rates, f"nightshift:rate:{{{name}}}", member)
        if url is not None:
            limiter.client = redis.asyncio.Redis.from_url(
                url,
                socket_timeout=None,
                socket_connect_timeout=ANSWER_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
            limiter._admit = limiter.client.register_script(ADMIT)
            limiter._pause = limiter.client.register_script(PAUSE)
        return limiter

    async def admit(self, estimate: float) -> Reservation:
        """Waits until a request of about `estimate` tokens may go, and takes its share.

        What is taken is the estimate times what earlier requests used of theirs.
        """
        async with self._turn:  # one asks for all: the others stand behind it in order
            taken = Reservation(estimate, estimate * self._ratio)
            while (wait := await self._wait(taken)) > 0:
                # Not all children at the same moment.
                await asyncio.sleep(min(wait, LOOK_SECONDS) * random.uniform(1.0, 1.05))
        return taken

    async def settle(self, taken: Reservation, used: int) -> None:
        """Gives back what was reserved and not used, or takes what was used beyond it."""
        if taken.estimate > 0 and used > 0:
            self._ratio += LEARNING * (used / taken.estimate - self._ratio)
        _, seconds = self.rates.seconds(used - taken.reserved)
        if not seconds:
            return
        if taken.is_local:
            self._local.tokens_at += seconds * self._fleet.members
        elif self.client is not None and not self._is_away():
            try:
                async with self._answer(), self.client.pipeline(transaction=False) as both:
                    await (
                        both.hincrbyfloat(self.name, "tokens", seconds)
                        .expire(self.name, 3600)
                        .execute()
                    )
            except (RedisError, OSError) as error:
                self._miss(error)

    async def pause(self, seconds: float) -> None:
        """Nobody in the fleet sends anything for so long: the server said so."""
        seconds = min(seconds, MOST_PAUSE_SECONDS)
        if seconds <= 0:
            return
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)
        if self.client is not None and not self._is_away():
            try:
                async with self._answer():
                    await self._pause(keys=[self.name], args=[seconds])
            except (RedisError, OSError) as error:
                self._miss(error)

    async def close(self) -> None:
        """Lets go of Redis."""
        if self.client is not None:
            await self.client.aclose()

    async def _wait(self, taken: Reservation) -> float:
        """Seconds to wait before asking again; 0 where the request may go."""
        now = time.monotonic()
        if self._paused_until > now:
            return self._paused_until - now
        requests, tokens = self.rates.seconds(taken.reserved)
        if self.client is not None and not self._is_away():
            try:
                async with self._answer():
                    milliseconds, members = await self._admit(
                        keys=[self.name, f"{self.name}:members"],
                        args=[self.member, BURST_SECONDS, requests, tokens],
                    )
            except (RedisError, OSError) as error:
                self._miss(error)
            else:
                self._fleet.hear(members)
                return float(milliseconds) / 1000
        if not self.rates.is_limited:
            return 0.0
        if self.client is not None and not self._fleet.is_counted:
            return AGAIN_SECONDS
        taken.is_local = True
        share = self._fleet.members
        return self._local.admit(time.monotonic(), requests * share, tokens * share)

    @staticmethod
    def _answer() -> asyncio.Timeout:
        """How long Redis may take. The client's own limit is `asyncio.wait_for`, which before Python
        3.12 loses a cancel that comes just as it ends: a stopped row would go on.
        """
        return asyncio.timeout(ANSWER_SECONDS)

    def _is_away(self) -> bool:
        return time.monotonic() < self._ask_at

    def _miss(self, error: Exception) -> None:
        if self._fleet.away_since is None:
            log.warning("limiter_away", error=type(error).__name__)
        self._fleet.miss()
        self._ask_at = time.monotonic() + AGAIN_SECONDS
