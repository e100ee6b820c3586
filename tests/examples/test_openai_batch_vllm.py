"""examples/openai_batch: a batch file comes out as the OpenAI batch API hands it out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.example import EXAMPLES, Example

pytestmark = pytest.mark.timeout(1200)

MORE = b"""{"custom_id": "other", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}
{"custom_id": "got", "method": "GET", "url": "/v1/chat/completions", "body": {}}
{no json
{"custom_id": "long \xc3\xa9", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "%s"}]}}
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_request_has_one_line_among_results_and_errors(
    example: Callable[[str], Example], database_url: str, redis_url: str
) -> None:
    batch = example("openai_batch")
    batch.environment |= {
        "NIGHTSHIFT_DATABASE_URL": database_url,
        "NIGHTSHIFT_BROKER_URL": redis_url,
    }
    (batch.folder.parent / "reviews").symlink_to(EXAMPLES / "reviews")
    requests = batch.folder / "requests.jsonl"
    asked = [line["custom_id"] for line in lines(requests)]
    with requests.open("ab") as file:
        file.write(MORE.replace(b"%s", b"word " * 2_000))

    said = batch.nightshift("run", "job.yaml", "--to", "results.jsonl", exit_code=1, seconds=500)
    assert f"33 results in {batch.folder / 'results.jsonl'}" in said
    results, errors = (
        lines(batch.folder / name) for name in ("results.jsonl", "results.errors.jsonl")
    )
    refused = asked.pop(14)
    assert [line["custom_id"] for line in results] == asked
    assert [line["custom_id"] for line in errors] == [refused, "other", "got", None, "long é"]
    ids = [line["id"] for line in results + errors]
    assert len(set(ids)) == 38
    assert all(each.startswith("batch_req_") for each in ids)

    for line in results:
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"]
        body = line["response"]["body"]
        assert body["object"] == "chat.completion"
        assert body["model"] == "reviews"
        content = body["choices"][0]["message"]["content"]
        assert content in ("positive", "neutral", "negative")
    assert len(results[5]["response"]["body"]["choices"][0]["logprobs"]["content"]) > 0
    assert len(results[9]["response"]["body"]["choices"]) == 2

    hot, *unread, long = errors
    for line, parameter in ((hot, "temperature"), (long, "input_text")):
        assert line["error"] is None
        assert line["response"]["status_code"] == 400
        assert line["response"]["body"]["error"]["param"] == parameter
    for line in unread:
        assert line["response"] is None
        assert line["error"]["code"] == "bad_record"
    assert "line 37: no valid JSON" in unread[2]["error"]["message"]

    table = ds.dataset(batch.folder / "out", format="parquet").to_table()
    assert table.num_rows == 38
    assert table.column("response").null_count == 3
    batch.nightshift("verify", "sentiment")

    # The same job again, in flags: nothing runs, and its own files are written anew.
    again = [
        "run requests.jsonl --format openai --model ../reviews/model --out out/ --batch-rows 8",
        "--engine-arg enforce_eager=true --engine-arg max_model_len=512",
        "--engine-arg max_num_seqs=16",
    ]
    words = " ".join(again).split()
    (batch.folder / "results.errors.jsonl").unlink()
    batch.nightshift(*words, "--to", "results.jsonl", exit_code=1)
    assert lines(batch.folder / "results.jsonl") == results
    assert lines(batch.folder / "results.errors.jsonl") == errors

    mine = batch.folder / "requests.results.jsonl"
    mine.write_text("precious")
    batch.nightshift(*words, exit_code=2)
    collected = ("collect", "sentiment", "--to", str(mine), "--format", "openai")
    batch.nightshift(*collected, exit_code=2)
    assert mine.read_text() == "precious"
    batch.nightshift(*collected, "--force")
    assert lines(mine) == results

    with requests.open("a") as file:
        file.write(json.dumps({"custom_id": asked[3]}) + "\n")
    elsewhere = ("-o", "other", "--to", "other.jsonl")
    twice = batch.command(*words[:4], "-m", "../reviews/model", *elsewhere)
    assert twice.returncode == 2
    assert f"{asked[3]!r} stands twice" in twice.stderr
    assert "line 4 and in" in twice.stderr
