"""A batch of the OpenAI API that is cancelled, or whose window is over, while its rows run: over a real fleet, with the
official client. Its rows are one batch of work.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from tests.integration.test_batch_api import create, line, lines_of, upload
from tests.support.fleet import logs, wait_until
from tests.support.remote import Call, Remote, Reply, answered
from tests.support.serve import Door

pytestmark = pytest.mark.slow

ROWS, ANSWERED, AT_ONCE = 25, 13, 4
PRICE = 1_000_000

PROMPT_ESTIMATE = 10
"""Estimated prompt tokens of a request that was abandoned: 38 bytes of messages at 4 bytes a token."""


@pytest.fixture
def remote() -> Iterator[Remote]:
    """Answers the first rows, and holds the others back until the end."""
    with Remote().running() as server:
        yield server


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str, remote: Remote) -> Iterator[Door]:
    """A server, a reaper and a worker whose engine sends AT_ONCE requests at once."""
    engine = {
        "backend": "openai",
        "model": "m",
        "base_url": remote.url,
        "concurrency": AT_ONCE,
        "price_per_million_output_tokens": PRICE,
    }
    beats = {"NIGHTSHIFT_HEARTBEAT_SECONDS": "1", "NIGHTSHIFT_LEASE_SECONDS": "60"}
    door = Door(tmp_path / "door", database_url, redis_url, {"shout": {"engine": engine}}, **beats)
    try:
        door.serve()
        door.reaper()
        yield door
    finally:
        door.end()


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_what_is_answered_is_delivered_and_what_was_sent_is_not_said_to_have_never_run(
    door: Door, remote: Remote, ledger: Ledger, end: str
) -> None:
    released = threading.Event()

    def behave(call: Call) -> Reply:
        if int(call.text) >= ANSWERED:
            released.wait(300)
        return answered(call)

    remote.behave = behave
    client = door.client()
    batch = create(client, upload(client, [line(n, str(n)) for n in range(ROWS)]))
    door.worker()
    wait_until(lambda: len(remote.calls) >= ANSWERED + AT_ONCE, what="the requests")

    def progress() -> bool:
        counts = client.batches.retrieve(batch.id).request_counts
        return (counts.total, counts.completed, counts.failed) == (ROWS, ANSWERED, 0)

    wait_until(progress, what="the answers in the counts of a batch that runs")
    if end == "cancelled":
        assert client.batches.cancel(batch.id).status == "cancelling"
    else:
        with ledger.transaction() as connection:
            connection.exec_driver_sql("UPDATE api_batches SET expires_at = now()")
    ended = door.ended(client, batch.id)
    released.set()
    assert ended.status == end, logs(door.folder)
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (ROWS, ANSWERED, ROWS - ANSWERED)
    assert ended.usage.output_tokens == ANSWERED * 3
    assert ended.usage.input_tokens == ANSWERED * 7 + AT_ONCE * PROMPT_ESTIMATE
    answers = lines_of(client, ended.output_file_id)
    assert [each["custom_id"] for each in answers] == [f"r-{n}" for n in range(ANSWERED)]
    errors = {each["custom_id"]: each["error"] for each in lines_of(client, ended.error_file_id)}
    assert {each["code"] for each in errors.values()} == {f"batch_{end}"}
    never_ran = {id for id, each in errors.items() if "before this request ran" in each["message"]}
    running = {
        id for id, each in errors.items() if "while this request was running" in each["message"]
    }
    sent = {f"r-{call.text}" for call in remote.calls}
    assert running == sent - {each["custom_id"] for each in answers}
    assert len(running) == AT_ONCE
    assert never_ran == {f"r-{n}" for n in range(ROWS)} - sent
    with ledger.transaction() as connection:
        cost = connection.exec_driver_sql("SELECT cost FROM job_costs").scalar_one()
    assert cost == ANSWERED * 3
