"""The OpenAI Batch API over a real fleet: the official client, unmodified, from file to answers."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import ConflictError, OpenAI
from openai._legacy_response import HttpxBinaryResponseContent

from nightshift.common.ledger import Ledger
from tests.support.fleet import logs, wait_until
from tests.support.remote import Call, Remote, Reply, answered, refused
from tests.support.serve import Door

ENDPOINT = "/v1/chat/completions"


@pytest.fixture
def remote() -> Iterator[Remote]:
    """The server that answers for the model."""
    with Remote().running() as server:
        yield server


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str, remote: Remote) -> Iterator[Door]:
    """A server, a reaper and a worker, with the model `shout`."""
    engine = {"backend": "openai", "model": "m", "base_url": remote.url}
    models = {"shout": {"aliases": ["gpt-4o-mini"], "engine": engine}}
    door = Door(tmp_path / "door", database_url, redis_url, models)
    try:
        door.serve()
        door.reaper()
        yield door
    finally:
        door.end()


def line(number: int, text: str, **body: Any) -> dict[str, Any]:
    """A request of a batch file."""
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": f"r-{number}",
        "method": "POST",
        "url": ENDPOINT,
        "body": {"model": "shout", "messages": messages, **body},
    }


def upload(client: OpenAI, lines: list[dict[str, Any]]) -> str:
    """A batch file with these lines; its id."""
    data = "".join(json.dumps(each) + "\n" for each in lines).encode()
    return client.files.create(file=("rows.jsonl", data), purpose="batch").id


def create(client: OpenAI, file_id: str, window: str = "24h", **given: Any) -> Any:
    """A batch of a file."""
    return client.batches.create(
        input_file_id=file_id,
        endpoint=ENDPOINT,
        completion_window=window,  # type: ignore[arg-type]
        **given,
    )


def lines_of(client: OpenAI, file_id: str) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


ENDS = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i"
"""What JSON holds in a string and readers of lines take for the end of one."""


def read_by(client: OpenAI, file_id: str) -> dict[str, list[Any]]:
    """The lines of a file of results, by the ways in which programs read lines."""
    content = client.files.content(file_id)
    found: dict[str, list[str] | list[bytes]] = {
        "splitlines": content.text.splitlines(),
        "split": content.content.removesuffix(b"\n").split(b"\n"),
    }
    with client.files.with_streaming_response.content(file_id) as answer:
        found["iter_lines"] = list(answer.iter_lines())
    return {way: [json.loads(each) for each in lines] for way, lines in found.items()}


def test_a_file_goes_in_and_every_line_has_its_answer(door: Door, remote: Remote) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    thoughts = {**usage, "completion_tokens_details": {"reasoning_tokens": 2}}

    def behave(call: Call) -> Reply:
        if call.text.endswith("7"):
            return refused(400, "no sevens")
        body = answered(call, usage=thoughts, ends=ENDS, model="m-2024-07-18").body
        return Reply(body=json.dumps(body, ensure_ascii=False).encode())

    remote.behave = behave
    client = door.client()
    lines = [line(number, f"say {number}", model="gpt-4o-mini") for number in range(30)]
    for each in lines:
        each["custom_id"] += ENDS
    file_id = upload(client, lines)
    batch = create(client, file_id, metadata={"who": "me"})
    assert (batch.status, batch.input_file_id) == ("validating", file_id)
    door.worker()
    ended = door.ended(client, batch.id)
    assert ended.status == "completed", logs(door.folder)
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (30, 27, 3)
    answers, errors = lines_of(client, ended.output_file_id), lines_of(client, ended.error_file_id)
    texts = {
        each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"]
        for each in answers
    }
    assert texts == {f"r-{n}{ENDS}": f"SAY {n}" for n in range(30) if n % 10 != 7}
    assert sorted(each["custom_id"] for each in errors) == [f"r-{n}{ENDS}" for n in (17, 27, 7)]
    # The server knows its own model alone, and the client its own name for the model alone.
    assert {call.body["model"] for call in remote.calls} == {"m"}
    assert {each["response"]["body"]["model"] for each in answers} == {"gpt-4o-mini"}
    for file_id, lines in ((ended.output_file_id, answers), (ended.error_file_id, errors)):
        for way, read in read_by(client, file_id).items():
            assert read == lines, way
    assert ended.usage.total_tokens == 27 * 10
    assert ended.usage.output_tokens_details.reasoning_tokens == 27 * 2
    assert {ended.output_file_id, ended.error_file_id} < {each.id for each in client.files.list()}


@pytest.mark.slow
def test_a_batch_of_which_every_row_failed_is_completed_and_has_no_file_of_answers(
    door: Door, remote: Remote
) -> None:
    remote.behave = lambda call: refused(400, "no")
    client = door.client()
    batch = create(client, upload(client, [line(n, "x") for n in range(3)]))
    door.worker()
    ended = door.ended(client, batch.id)
    assert (ended.status, ended.output_file_id, ended.errors) == ("completed", None, None)
    assert (ended.request_counts.completed, ended.request_counts.failed) == (0, 3)
    assert len(lines_of(client, ended.error_file_id)) == 3


@pytest.mark.slow
def test_a_retry_runs_what_failed_and_writes_the_files_anew(door: Door, remote: Remote) -> None:
    broken = [True]

    def behave(call: Call) -> Reply:
        return refused(400, "not now") if broken and call.text == "b" else answered(call)

    remote.behave = behave
    client = door.client()
    batch = create(client, upload(client, [line(n, text) for n, text in enumerate("abc")]))
    door.worker()
    first = door.ended(client, batch.id)
    assert first.request_counts.failed == 1
    broken.clear()
    again = client.post(f"/batches/{batch.id}/retry", cast_to=object)
    assert again["status"] == "in_progress"  # type: ignore[index]
    second = door.ended(client, batch.id)
    assert (second.status, second.error_file_id) == ("completed", None)
    assert second.request_counts.completed == 3
    assert [each["custom_id"] for each in lines_of(client, second.output_file_id)] == [
        "r-0",
        "r-1",
        "r-2",
    ]
    assert first.output_file_id not in {each.id for each in client.files.list()}
    with pytest.raises(ConflictError):
        client.post(f"/batches/{batch.id}/retry", cast_to=object)


@pytest.mark.slow
def test_results_are_read_while_the_batch_runs_and_again_after_a_retry(
    door: Door, remote: Remote
) -> None:
    held, broken = threading.Event(), [True]

    def behave(call: Call) -> Reply:
        if call.text == "3":
            held.wait(100)
        return refused(400, "not now") if broken and call.text == "1" else answered(call)

    remote.behave = behave
    client = door.client()
    lines = [line(n, str(n)) for n in range(4)]
    batch = create(client, upload(client, lines), extra_body={"nightshift": {"priority": 0}})
    door.worker()
    cursor, seen = "0", dict[str, bool]()

    def read() -> list[str]:
        nonlocal cursor
        answer = client.get(
            f"/batches/{batch.id}/results",
            cast_to=HttpxBinaryResponseContent,
            options={"params": {"after": cursor}},
        )
        cursor = answer.response.headers["x-nightshift-cursor"]
        found = [json.loads(each) for each in answer.text.splitlines()]
        seen.update({each["custom_id"]: _is_answer(each) for each in found})
        return sorted(each["custom_id"] for each in found)

    assert read() == []
    held.set()
    wait_until(lambda: read() is not None and len(seen) == 4, what="every line")
    assert seen == {"r-0": True, "r-1": False, "r-2": True, "r-3": True}
    door.ended(client, batch.id)
    assert set(read()) <= {"r-1"}
    broken.clear()
    client.post(f"/batches/{batch.id}/retry", cast_to=object)
    door.ended(client, batch.id)
    assert "r-1" in read()
    assert seen["r-1"]
    assert read() == []


def _is_answer(line: dict[str, Any]) -> bool:
    return line["response"] is not None and line["response"]["status_code"] == 200


@pytest.mark.slow
def test_a_tenant_has_so_many_rows_at_once_and_gets_them_back(door: Door) -> None:
    client = door.client()
    file_id = upload(client, [line(n, "x") for n in range(3)])
    first = create(client, file_id)
    wait_until(lambda: client.batches.retrieve(first.id).status == "in_progress", what="a job")
    assert door.command("tenant", "set", "default", "--max-rows", "5").returncode == 0
    second = door.ended(client, create(client, file_id).id)
    assert [each.code for each in second.errors.data] == ["token_limit_exceeded"]
    client.batches.cancel(first.id)
    door.ended(client, first.id)
    third = create(client, file_id)
    wait_until(lambda: client.batches.retrieve(third.id).status == "in_progress", what="a job")


@pytest.mark.slow
def test_a_window_that_is_over_delivers_what_is_done(door: Door, ledger: Ledger) -> None:
    client = door.client()
    batch = create(client, upload(client, [line(n, "x") for n in range(3)]), window="1m")
    wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress", what="a job")
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_batches SET expires_at = now()")
    ended = door.ended(client, batch.id)
    assert (ended.status, ended.output_file_id) == ("expired", None)
    found = lines_of(client, ended.error_file_id)
    assert [(each["custom_id"], each["error"]["code"]) for each in found] == [
        (f"r-{n}", "batch_expired") for n in range(3)
    ]


@pytest.mark.slow
def test_with_skip_a_bad_line_fails_alone(door: Door) -> None:
    client = door.client()
    data = json.dumps(line(0, "a")).encode() + b"\n{broken\n" + json.dumps(line(2, "c")).encode()
    file = client.files.create(file=("rows.jsonl", data), purpose="batch")
    options = {"nightshift": {"on_bad_line": "skip"}}
    batch = create(client, file.id, extra_body=options)
    door.worker()
    ended = door.ended(client, batch.id)
    assert (ended.status, ended.request_counts.failed) == ("completed", 1)
    assert [each["custom_id"] for each in lines_of(client, ended.output_file_id)] == ["r-0", "r-2"]
    (error,) = lines_of(client, ended.error_file_id)
    assert error["error"]["code"] == "bad_record"
    assert error["error"]["message"].startswith(f"{file.id}.jsonl line 2: "), (
        "and no path of the store"
    )
    streamed = client.get(f"/batches/{batch.id}/results", cast_to=httpx.Response).text
    assert f"{file.id}.jsonl line 2: " in streamed
    assert str(door.folder) not in streamed


@pytest.mark.slow
def test_with_skip_lines_that_others_make_wrong_and_impossible_numbers_fail_alone(
    door: Door, remote: Remote
) -> None:
    client = door.client()
    lines = [
        line(0, "first"),
        line(0, "second"),
        {**line(1, "alias"), "body": {**line(1, "alias")["body"], "model": "gpt-4o-mini"}},
        line(2, "many", max_tokens=2**80),
        line(3, "last"),
        {**line(4, "other"), "body": {**line(4, "other")["body"], "model": "another"}},
    ]
    options = {"nightshift": {"on_bad_line": "skip"}}
    batch = create(client, upload(client, lines), extra_body=options)
    door.worker()
    ended = door.ended(client, batch.id)
    assert ended.status == "completed", logs(door.folder)
    answers = lines_of(client, ended.output_file_id)
    assert [each["custom_id"] for each in answers] == ["r-0", "r-1", "r-3"]
    errors = {each["custom_id"]: each["error"] for each in lines_of(client, ended.error_file_id)}
    assert {each["code"] for each in errors.values()} == {"bad_record"}
    assert "line 1 already" in errors["r-0"]["message"]
    assert "max_tokens is 1208925819614629174706176" in errors["r-2"]["message"]
    assert "the model is 'another'" in errors["r-4"]["message"]
    assert sorted(call.text for call in remote.calls) == ["alias", "first", "last"]
    assert "Traceback" not in logs(door.folder)


def test_a_bad_file_fails_with_every_bad_line_and_runs_nothing(door: Door, remote: Remote) -> None:
    client = door.client()
    lines = [line(0, "a"), line(0, "b"), line(2, "c", stream=True), {"custom_id": "x"}]
    batch = create(client, upload(client, lines))
    ended = door.ended(client, batch.id)
    assert ended.status == "failed"
    assert [(each.line, each.code) for each in ended.errors.data] == [
        (3, "invalid_request"),
        (4, "missing_required_parameter"),
        (2, "duplicate_custom_id"),
    ]
    assert remote.calls == []


@pytest.mark.slow
def test_what_is_done_of_a_cancelled_batch_is_delivered(door: Door, remote: Remote) -> None:
    remote.behave = lambda call: Reply(hang=True) if call.text == "wait" else answered(call)
    client = door.client()
    texts = ["one", "two", *["wait"] * 3]
    batch = create(client, upload(client, [line(n, text) for n, text in enumerate(texts)]))
    door.worker()
    wait_until(lambda: len(remote.calls) >= 5, what="every request")
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    ended = door.ended(client, batch.id)
    assert ended.status == "cancelled"
    assert client.batches.cancel(batch.id).status == "cancelled"
    found = [
        each["custom_id"]
        for file_id in (ended.output_file_id, ended.error_file_id)
        if file_id
        for each in lines_of(client, file_id)
    ]
    assert sorted(found) == [f"r-{n}" for n in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["1", "24 h", "0h", "31d", ""])
def test_a_bad_window_is_refused_in_one_shape(door: Door, given: str) -> None:
    client = door.client(max_retries=0)
    file_id = upload(client, [line(0, "a")])
    with pytest.raises(Exception, match="completion_window") as refusal:
        create(client, file_id, window=given)
    assert set(refusal.value.body) == {"message", "type", "param", "code"}  # type: ignore[attr-defined]
