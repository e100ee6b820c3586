"""A Redis that answers every write with an error is treated as one that cannot be reached."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis as client

from nightshift.common.broker import Announcer, ping
from nightshift.common.errors import Retryable
from tests.faults.test_redis_away import go_on, leave, wait_for_hint
from tests.support.fleet import is_alive, logs, wait_until
from tests.support.rig import Rig
from tests.support.servers import Server

RETRIED = re.compile("consumer_restarts|Cannot connect to")
"""What a child logs for each error of the broker."""

Refusal = Callable[["client.Redis"], Iterator[None]]


def full(redis: "client.Redis") -> Iterator[None]:
    """OOM: `maxmemory` is reached and nothing may be evicted."""
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    yield
    redis.config_set("maxmemory", 0)


def replica(redis: "client.Redis") -> Iterator[None]:
    """READONLY: what a client meets that keeps the address of the old primary after a failover."""
    redis.config_set("replica-read-only", "yes")
    redis.config_set("replica-serve-stale-data", "yes")
    redis.replicaof("127.0.0.1", 1)
    yield
    redis.replicaof("NO", "ONE")


def stale_replica(redis: "client.Redis") -> Iterator[None]:
    """MASTERDOWN: a replica without its primary that does not answer reads either."""
    redis.config_set("replica-serve-stale-data", "no")
    redis.replicaof("127.0.0.1", 1)
    yield
    redis.replicaof("NO", "ONE")
    redis.config_set("replica-serve-stale-data", "yes")


def no_snapshot(redis: "client.Redis") -> Iterator[None]:
    """MISCONF: the last snapshot could not be written."""
    folder = Path(redis.config_get("dir")["dir"])
    gone = folder / "gone"
    gone.mkdir()
    redis.config_set("dir", str(gone))
    gone.rmdir()
    redis.config_set("stop-writes-on-bgsave-error", "yes")
    redis.config_set("save", "3600 1")
    redis.bgsave()
    wait_until(
        lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", what="a failed save"
    )
    yield
    redis.config_set("save", "")
    redis.config_set("dir", str(folder))


def other_password(redis: "client.Redis") -> Iterator[None]:
    """NOAUTH and WRONGPASS: the password changed under connections that are cut."""
    before = redis.config_get("requirepass")["requirepass"]
    redis.config_set("requirepass", "another")
    redis.client_kill_filter(_type="normal", skipme=True)
    yield
    redis.config_set("requirepass", before)


def no_permission(redis: "client.Redis") -> Iterator[None]:
    """NOPERM: the user of the fleet may only read."""
    redis.execute_command("ACL", "SETUSER", "default", "-@write")
    yield
    redis.execute_command("ACL", "SETUSER", "default", "+@all")


def loading(redis: "client.Redis") -> Iterator[None]:
    """LOADING: Redis reads its data from the disk, and answers between two pieces of 2 MB."""
    redis.config_set("rdbcompression", "no")
    redis.execute_command("DEBUG", "POPULATE", 60_000, "filling", 1000)
    redis.config_set("key-load-delay", 500)  # microseconds a key: half a minute in all
    reload = threading.Thread(target=_reload, args=(redis,))
    reload.start()
    wait_until(lambda: _is_loading(redis), what="the load")
    yield
    reload.join()
    redis.config_set("key-load-delay", 0)
    redis.flushall()


def _reload(redis: "client.Redis") -> None:
    with suppress(client.RedisError):
        redis.execute_command("DEBUG", "RELOAD")


def _is_loading(redis: "client.Redis") -> bool:
    try:
        redis.get("anything")
    except client.BusyLoadingError:
        return True
    return False


REFUSALS = [full, replica, stale_replica, no_snapshot, other_password, no_permission]


@contextmanager
def refusing(server: Server, refusal: Refusal) -> Iterator[None]:
    """The server refuses inside the block, every client but the one that made it so."""
    with client.Redis.from_url(server.url, socket_timeout=None) as redis:
        steps = refusal(redis)
        next(steps)
        with client.Redis.from_url(server.url) as other, pytest.raises(client.RedisError):
            other.set("anything", 1)
        try:
            yield
        finally:
            next(steps, None)


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [full, replica, no_snapshot, other_password, loading])
def test_children_keep_their_engine_while_redis_refuses(
    rig: Rig, redis: Server, refusal: Refusal
) -> None:
    """From the start of the fleet, and under a fleet that works; hints lead to claims afterwards."""
    rig.let(20)
    rig.submit("emptied", 5000)
    with refusing(redis, refusal):
        worker, reaper = rig.worker(), rig.reaper()
        rig.wait_rows("emptied", 20)
        child = rig.child(worker)
        if refusal is not loading:  # which ends by itself, perhaps before the child asks
            wait_until(lambda: RETRIED.search(logs(rig.folder)), what="an error of the broker")
        go_on(rig, 100)
    wait_for_hint(rig, "emptied")
    with refusing(redis, refusal):
        go_on(rig, 200)
    wait_for_hint(rig, "emptied")
    whole = "".join(path.read_text(errors="replace") for path in rig.folder.rglob("*.log"))
    assert "Frequent restarts" not in whole  # Celery's message about restarts without a pause
    assert is_alive(child)
    assert reaper.poll() is None
    assert rig.value("SELECT count(*) FROM workers") == 1
    leave(rig, worker)


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_broker_that_refuses_hints_is_one_that_cannot_be_reached(
    redis: Server, refusal: Refusal
) -> None:
    """For the reaper and for `nightshift doctor`, and it answers again afterwards."""
    with client.Redis.from_url(redis.url) as admin:
        admin.flushall()
    announcer = Announcer(redis.url)
    assert announcer.top_up("default", "key", 2, 10, float("inf")) == 2
    with refusing(redis, refusal):
        with pytest.raises(Retryable, match="broker"):
            announcer.top_up("default", "key", 4, 10, float("inf"))
        with pytest.raises(Retryable, match="broker"):
            ping(redis.url)
    assert announcer.top_up("default", "key", 4, 10, float("inf")) == 2
    assert ping(redis.url) < 60
    announcer.close()
