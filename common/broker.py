"""The broker: Celery app factory, queue and task names, and the hints that are sent.

A hint says "there is work on this queue" and nothing else; the loss of all hints costs seconds.
"""

import time

from celery import Celery
from kombu import Connection
from kombu.exceptions import ChannelError, OperationalError

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.public_text import marked

WAKE = "nightshift.wake"
"""Name of the only task."""

TRANSPORT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    # Messages are acknowledged before they are run, so this only bounds a lost acknowledgement.
    "visibility_timeout": 3600,
}

PING_MILLISECONDS = 1000
"""Lifetime of the key that `ping` writes."""


def queue_name(pool: str, engine_key: str) -> str:
    """The queue of one engine in one pool."""
    return f"nightshift.{pool}.{engine_key}"


def make_app(url: str | None) -> Celery:
    """A Celery app; without a URL it has no broker to speak of (workers then ask Postgres)."""
    app = Celery("nightshift", broker=url or "memory://", set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        task_publish_retry=False,
        task_default_queue="nightshift",
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_enable_soft_shutdown_on_idle=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=5,
        broker_transport_options=TRANSPORT_OPTIONS,
    )
    return app


def ping(url: str) -> float:
    """Return the seconds that the broker takes to store a value. Raise Retryable if it cannot be
    reached or refuses writes, BadInput if the URL is not that of a broker.
    """
    app, began = make_app(url), time.monotonic()
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            _store(connection, "nightshift.ping")
    except (OperationalError, OSError) as error:
        raise Retryable(f"the broker cannot be reached: {marked(error)}") from error
    except (KeyError, ValueError) as error:
        raise _no_broker(error) from None
    return time.monotonic() - began


class Announcer:
    """Sends hints for the reaper; the connection is opened at the first and kept."""

    def __init__(self, url: str) -> None:
        self._app = make_app(url)
        self._connection: Connection | None = None

    def top_up(self, pool: str, engine_key: str, target: int, most: int, until: float) -> int:
        """Brings a queue up to `target` messages by sending `most` or less, none of them after
        `until` by the monotonic clock; returns how many.

        The depth of the queue is read first: lost messages are replaced, spare ones do not pile up.
        Raises Retryable when the broker cannot be reached.
        """
        queue = queue_name(pool, engine_key)
        try:
            connection = self._connected()
            missing = min(most, target - _depth(connection, queue))
            # One for all: send_task makes another for each message, which doubles its cost.
            producer = self._app.amqp.Producer(connection, auto_declare=False)
            for sent in range(missing):
                if time.monotonic() >= until:
                    return sent
                self._app.send_task(WAKE, queue=queue, producer=producer, ignore_result=True)
        except (OperationalError, OSError) as error:
            self.close()
            raise Retryable(f"the broker cannot be reached: {marked(error)}") from error
        except (KeyError, ValueError) as error:
            raise _no_broker(error) from None
        return max(0, missing)

    def close(self) -> None:
        """Lets the connection go; the next hint opens another."""
        if self._connection is not None:
            self._connection.release()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._app.connection_for_write()
            self._connection.ensure_connection(max_retries=1, timeout=5)
        return self._connection


def _no_broker(error: KeyError | ValueError) -> BadInput:
    """The error for a URL that kombu does not take. A port that is not a number may be a piece of a
    password: only the name of a transport is repeated.
    """
    why = f" ({error.args[0]})" if isinstance(error, KeyError) else ""
    return BadInput(
        f"NIGHTSHIFT_BROKER_URL is no redis:// URL{why}: redis://host:6379/0, rediss:// with TLS, or "
        "redis+socket:///path; in a password %, :, /, @ and ? are percent-encoded"
    )


def _store(connection: Connection, key: str) -> None:
    """Write a key that expires at once: a Redis that is full or a replica still answers reads."""
    try:
        connection.default_channel.client.set(key, 1, px=PING_MILLISECONDS)
    except connection.channel_errors + connection.connection_errors as error:
        raise OperationalError(str(error)) from error


def _depth(connection: Connection, queue: str) -> int:
    try:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
    except ChannelError:
        return 0
    except connection.channel_errors + connection.connection_errors as error:
        raise OperationalError(str(error)) from error
