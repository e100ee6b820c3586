"""Webhooks sent to a receiver that answers by a script: again until it answers 2xx, each event under one id."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from nightshift.common.ledger import Ledger, holds
from nightshift.common.ledger.holds import Kind
from nightshift.producer.serve.api_batches import send_webhooks
from nightshift.producer.serve.ledger import api_batch_steps, outbox
from nightshift.producer.serve.ledger.api_batches import ApiBatchStatus
from tests.support.fleet import logs, wait_until
from tests.support.receiver import BROKEN, TAKEN, Answer, Listen
from tests.support.sender import FIRST, KEY, SECOND, Sender
from tests.support.serve import Door

MOVED = b"HTTP/1.1 302 Found\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n"


def test_an_event_is_sent_once_signed_and_never_again(sender: Sender, listen: Listen) -> None:
    receiver = listen(TAKEN)
    sender.tell(receiver.url)
    batch = sender.batch()
    assert not sender.send(), "nothing has ended"
    sender.end(batch)
    assert sender.send()
    sender.move(10_000)
    assert not sender.send()
    (heard,) = receiver.heard
    assert heard.target == "/events?from=fleet"
    assert heard.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert heard.headers["content-type"] == "application/json"
    secret = send_webhooks.secret(KEY, FIRST)
    event = Webhook(secret).verify(heard.body, heard.headers)
    assert (event["id"], event["type"], event["data"]) == (
        heard.id,
        "batch.cancelled",
        {"id": batch},
    )
    told = openai.OpenAI(api_key="none").webhooks.unwrap(heard.body, heard.headers, secret=secret)
    assert told.type == "batch.cancelled"
    with pytest.raises(WebhookVerificationError):
        Webhook(send_webhooks.secret(KEY, SECOND)).verify(heard.body, heard.headers)


def test_an_event_that_is_refused_comes_again_under_its_id_after_ever_longer(
    sender: Sender, listen: Listen
) -> None:
    receiver = listen(BROKEN, BROKEN, BROKEN, TAKEN)
    sender.tell(receiver.url)
    sender.end(sender.batch())
    waits = []
    for _ in range(3):
        assert sender.send()
        assert not sender.send(), "not before its time"
        (row,) = sender.rows()
        assert row.error == "the receiver answered 500"
        waits.append(row.wait)
        sender.move(row.wait)
    assert waits == pytest.approx([15, 30, 60], abs=10)
    assert sender.send()
    (row,) = sender.rows()
    assert (row.sent, row.error, row.tries) == (True, None, 4)
    assert len(set(receiver.ids)) == 1
    assert len(receiver.heard) == 4


def test_an_event_that_nobody_takes_is_given_up_after_three_days(
    sender: Sender, listen: Listen
) -> None:
    receiver = listen(BROKEN)
    sender.tell(receiver.url)
    sender.end(sender.batch())
    sender.move(outbox.GIVEN_UP_AFTER_SECONDS - 60)
    assert sender.send()
    assert not sender.rows()[0].left
    sender.move(100)
    assert sender.send()
    assert sender.rows()[0].left
    sender.move(10_000)
    assert not sender.send()


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("silent", "did not answer within 0.5 s"),
        ("endless", "did not answer within 0.5 s"),
        (b"", "cannot be reached"),
        (b"HTTP/1.1 2", "cannot be reached"),
        (b"nonsense\r\n\r\n", "cannot be reached"),
    ],
)
def test_a_receiver_that_is_slow_or_dies_is_asked_again(
    sender: Sender,
    listen: Listen,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | bytes,
    said: str,
) -> None:
    monkeypatch.setattr(send_webhooks, "TRY_SECONDS", 0.5)
    receiver = listen(TAKEN)
    first: Answer = getattr(receiver, answer) if isinstance(answer, str) else answer
    receiver.script = (first, TAKEN)
    sender.tell(receiver.url)
    sender.end(sender.batch())
    assert sender.send()
    (row,) = sender.rows()
    assert not row.sent
    assert said in row.error
    sender.move(20)
    assert sender.send()
    assert sender.rows()[0].sent
    assert len(set(receiver.ids)) == 1
    assert len(receiver.heard) == 2


def test_a_receiver_that_is_away_is_asked_again(sender: Sender) -> None:
    sender.tell(f"http://127.0.0.1:{_closed_port()}/")
    sender.end(sender.batch())
    assert sender.send()
    (row,) = sender.rows()
    assert (row.sent, row.tries) == (False, 1)
    assert "nothing listens there" in row.error


def test_a_redirect_is_not_followed(sender: Sender, listen: Listen) -> None:
    elsewhere = listen(TAKEN)
    receiver = listen(MOVED % elsewhere.url.encode())
    sender.tell(receiver.url)
    sender.end(sender.batch())
    assert sender.send()
    assert sender.rows()[0].error == "the receiver answered 302"
    assert elsewhere.heard == []


def test_a_batch_whose_end_is_rolled_back_sends_nothing(sender: Sender, listen: Listen) -> None:
    receiver = listen(TAKEN)
    sender.tell(receiver.url)
    batch = sender.batch()
    with sender.ledger.transaction() as connection:
        sender.end_in(connection, batch)
        connection.rollback()
    assert sender.rows() == []
    assert not sender.send()


@pytest.mark.parametrize("end", ["cancelled", "failed", "expired", "completed"])
def test_each_end_of_a_batch_is_one_event_for_who_wants_to_hear_of_it(
    sender: Sender, end: str
) -> None:
    with sender.ledger.transaction() as connection:
        outbox.add(connection, FIRST, "acme", "http://a.example/", [f"batch.{end}"])
        others = [event for event in outbox.EVENTS if event != f"batch.{end}"]
        outbox.add(connection, SECOND, "acme", "http://b.example/", others)
    batch = sender.batch()
    with sender.ledger.transaction() as connection:
        if end == "cancelled":
            sender.end_in(connection, batch)
        elif end == "failed":
            taken = api_batch_steps.take_validating(connection, "r")
            assert taken is not None
            assert api_batch_steps.refuse(connection, taken[1], [])
        elif end == "expired":
            connection.exec_driver_sql("UPDATE api_batches SET expires_at = '-infinity'")
            assert api_batch_steps.expire(connection, 9) == [batch]
        else:
            connection.exec_driver_sql("UPDATE api_batches SET state = 'finalizing'")
            hold = holds.take(connection, Kind.API_BATCH, batch, "r")
            assert hold is not None
            written = api_batch_steps.WrittenFiles(None, None, 0)
            assert api_batch_steps.end(
                connection, hold, ApiBatchStatus.COMPLETED, written=written, failed=0, usage={}
            )
    with sender.ledger.transaction() as connection:
        found = connection.exec_driver_sql("SELECT endpoint_id, event FROM webhook_outbox").all()
    assert found == [(FIRST, f"batch.{end}")]


def test_who_was_told_and_could_not_note_it_tells_again_under_the_same_id(
    sender: Sender, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = listen(TAKEN)
    sender.tell(receiver.url)
    sender.end(sender.batch())
    with monkeypatch.context() as broken:
        broken.setattr(outbox, "delivered", _away)
        with pytest.raises(RuntimeError):
            sender.send()
    assert not sender.send(), "not before its time"
    sender.move(20)
    assert sender.send()
    assert not sender.send()
    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1


def _away(*_: Any) -> None:
    raise RuntimeError


def test_two_reapers_at_once_send_each_event_once(
    sender: Sender, second_ledger: Callable[[], Ledger], listen: Listen
) -> None:
    receiver = listen(TAKEN)
    sender.tell(receiver.url)
    for _ in range(20):
        sender.end(sender.batch())
    ledgers = [second_ledger(), second_ledger()]

    def work(ledger: Ledger) -> None:
        while send_webhooks.send_once(ledger, sender.settings):
            pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ledgers))
    assert sorted(receiver.ids) == sorted(row.id for row in sender.rows())
    assert all(row.sent for row in sender.rows())


def test_an_event_that_is_being_sent_is_not_sent_by_another_reaper(
    sender: Sender, second_ledger: Callable[[], Ledger], listen: Listen
) -> None:
    other, found = second_ledger(), []

    def meanwhile(connection: socket.socket) -> None:
        found.append(send_webhooks.send_once(other, sender.settings))
        connection.sendall(TAKEN)

    receiver = listen(meanwhile)
    sender.tell(receiver.url)
    sender.end(sender.batch())
    assert sender.send()
    assert len(receiver.ids) == 1
    assert [bool(each) for each in found] == [False]


def test_an_address_that_is_removed_hears_of_nothing_more(sender: Sender, listen: Listen) -> None:
    receiver = listen(TAKEN)
    sender.tell(receiver.url)
    sender.end(sender.batch())
    batch = sender.batch()
    with sender.ledger.transaction() as connection:
        assert outbox.remove(connection, FIRST, "acme")
    sender.end(batch)
    assert not sender.send()
    assert receiver.heard == []


def test_an_address_is_not_removed_between_the_end_of_a_batch_and_its_commit(
    sender: Sender, second_ledger: Callable[[], Ledger], listen: Listen
) -> None:
    receiver = listen(TAKEN)
    sender.tell(receiver.url)
    batch, other = sender.batch(), second_ledger()

    def remove() -> None:
        with other.transaction() as connection:
            assert outbox.remove(connection, FIRST, "acme")

    with ThreadPoolExecutor(1) as pool:
        with sender.ledger.transaction() as connection:
            sender.end_in(connection, batch)
            removal = pool.submit(remove)
            wait_until(lambda: removal.done() or _somebody_waits(sender.ledger), what="the removal")
        removal.result()
    assert not sender.send()
    assert receiver.heard == []


def _somebody_waits(ledger: Ledger) -> bool:
    with ledger.transaction() as connection:
        statement = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return bool(connection.exec_driver_sql(statement).scalar_one())


def test_an_address_that_does_not_answer_is_tried_once_while_others_hear(
    sender: Sender, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many events it was to hear, and also those that come meanwhile."""
    monkeypatch.setattr(send_webhooks, "TRY_SECONDS", 0.5)
    slow, quick = listen(BROKEN), listen(TAKEN)
    slow.script = (slow.silent, slow.silent, TAKEN)
    sender.tell(slow.url, FIRST)
    for _ in range(3):
        sender.end(sender.batch())
    assert sender.send()
    sender.tell(quick.url, SECOND)
    sender.end(sender.batch())
    assert sender.send()
    assert not sender.send()
    assert (len(slow.heard), len(quick.heard)) == (1, 1)
    sender.move(16)
    assert sender.send()
    assert not sender.send(), "all wait for the one that was tried twice"
    assert slow.ids == [slow.ids[0]] * 2
    sender.move(31)
    while sender.send():
        pass
    assert sorted(set(slow.ids)) == sorted(slow.ids[2:])
    assert len(slow.ids) == 6
    assert all(row.sent for row in sender.rows())


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    """A server that sends webhooks to this machine, and no reaper yet."""
    environment = {"NIGHTSHIFT_WEBHOOK_KEY": KEY, "NIGHTSHIFT_WEBHOOK_PRIVATE": "1"}
    door = Door(tmp_path / "door", database_url, redis_url, {}, **environment)
    try:
        door.serve()
        yield door
    finally:
        door.end()


@pytest.mark.slow
def test_a_reaper_that_is_killed_before_it_notes_the_answer_is_followed_by_one_that_sends_again(
    door: Door, ledger: Ledger, listen: Listen
) -> None:
    """The receiver kills the first sender, and answers the second."""
    killed = threading.Event()

    def kill(connection: socket.socket) -> None:
        if not killed.is_set():
            reaper.send_signal(signal.SIGKILL)
            reaper.wait()
            killed.set()
        connection.sendall(TAKEN)

    receiver = listen(kill)
    made = httpx.post(f"{door.url}/../api/webhooks", json={"url": receiver.url}, timeout=60)
    assert made.status_code == 201, made.text
    reaper = door.reaper()
    client = door.client()
    file = client.files.create(file=("rows.jsonl", b"{}\n"), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert killed.wait(120), logs(door.folder)
    assert client.batches.retrieve(batch.id).status == "failed"
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE webhook_outbox SET next_try_at = now()")
    door.reaper()
    wait_until(lambda: len(receiver.heard) == 2, what="the second delivery")
    wait_until(lambda: _is_sent(ledger), what="the note of it")
    first, second = receiver.heard
    assert (first.id, first.body) == (second.id, second.body)
    event = Webhook(made.json()["secret"]).verify(second.body, second.headers)
    assert (event["type"], event["data"]["id"]) == ("batch.failed", batch.id)


def _is_sent(ledger: Ledger) -> bool:
    with ledger.transaction() as connection:
        statement = "SELECT bool_and(delivered_at IS NOT NULL) FROM webhook_outbox"
        return bool(connection.exec_driver_sql(statement).scalar_one())
