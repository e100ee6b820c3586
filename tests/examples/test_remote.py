"""examples/remote: a model behind an API on loopback that limits, stumbles and wants its key."""

import json
from collections.abc import Callable

import pyarrow.dataset as ds
import pytest

from tests.support.example import Example
from tests.support.remote import Call, Remote, Reply, answered, refused

pytestmark = pytest.mark.slow

KEY = "sk-example-and-secret"


def test_rows_are_answered_through_limits_and_errors_and_the_key_stays_where_it_is(
    example: Callable[[str], Example],
) -> None:
    remote = example("remote")
    moods = {"love": "positive", "broke": "negative"}

    def behave(call: Call) -> Reply:
        if call.headers["authorization"] != f"Bearer {KEY}":
            return refused(401, "who are you?")
        if call.number == 1 and call.body["messages"][1]["content"].startswith("It"):
            return refused(429, "slow down", retry_after_ms="100")
        if call.number == 1 and "lamp" in call.text:
            return Reply(500, b"oops")
        if "smell" in call.text:
            return refused(400, f"we do not like it, {KEY}")
        mood = next((mood for word, mood in moods.items() if word in call.text), "neutral")
        choice = {"message": {"content": mood}, "finish_reason": "stop"}
        return answered(call, choices=[choice])

    with Remote().running() as server:
        server.behave = behave
        remote.environment["NIGHTSHIFT_API_KEYS"] = json.dumps({server.url: KEY})
        remote.nightshift("run", "job.yaml", "--base-url", server.url, exit_code=1)
    rows = ds.dataset(remote.folder / "out").to_table().sort_by("row_index").to_pylist()
    assert [row["review_id"] for row in rows] == [f"r{number:02}" for number in range(1, 13)]
    assert [row["output"] for row in rows[:3]] == ["positive", "negative", "neutral"]
    assert {(row["prompt_tokens"], row["output_tokens"]) for row in rows if row["output"]} == {
        (7, 3)
    }
    (failed,) = (row for row in rows if row["error"] is not None)
    assert failed["error"] == {"kind": "refused", "message": "400: we do not like it, ***"}
    assert failed["review_id"] == "r08"
    remote.nightshift("verify", "remote")
    status = json.loads(remote.nightshift("status", "remote", "--json"))
    assert (status["prompt_tokens"], status["output_tokens"]) == (77, 33)
    kept = [path for path in remote.folder.rglob("*") if path.is_file()]
    assert any(path.name == "worker.log" for path in kept)
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]
