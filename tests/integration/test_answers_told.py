"""Thoughts, samples and votes of a whole job: in its parts, in `status`, in SQL and in `sample --doubt`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.fleet import Fleet, function_spec, logs, write_rows
from tests.support.remote import Call, Remote, Reply

pytestmark = pytest.mark.slow

ROWS = 9
LABELS = ["positive", "negative"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    yield found
    found.end()


def voted(call: Call) -> Reply:
    """As many of ten samples are positive as the row's number says, and each has a thought of two tokens."""
    number = int(call.text.split()[-1])
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": LABELS[index >= number],
                "reasoning": f"row {number}",
            },
            "finish_reason": "stop",
        }
        for index in range(call.body.get("n", 1))
    ]
    tokens = 5 * len(choices)
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": tokens,
        "total_tokens": 7 + tokens,
        "completion_tokens_details": {"reasoning_tokens": 2 * len(choices)},
    }
    return Reply(body={"id": "c", "choices": choices, "usage": usage})


def test_a_job_tells_of_its_thoughts_its_samples_and_its_doubts(fleet: Fleet) -> None:
    texts = [f"row {number}" for number in range(1, ROWS + 1)]
    folder = fleet.folder / "in"
    folder.mkdir()
    pq.write_table(pa.table({"id": texts, "text": texts}), folder / "a.parquet")
    with Remote().running() as remote:
        remote.behave = voted
        fleet.environment["NIGHTSHIFT_API_KEYS"] = json.dumps({remote.url: "k"})
        made = function_spec(
            "voted",
            folder,
            fleet.folder / "out",
            task={
                "kind": "generate",
                "prompt": "{{ text }}",
                "keep_reasoning": True,
                "thinking": "on",
                "output": {"choice": LABELS},
                "sampling": {"n": 10, "temperature": 0.8},
                "vote": "choice",
            },
            engine={"backend": "openai", "model": "m", "base_url": remote.url},
            batch={"rows": 4},
        )
        spec = fleet.spec(made)
        done = fleet.command("run", str(spec))
    assert done.returncode == 0, done.stdout + done.stderr + logs(fleet.folder)
    assert {call.body["n"] for call in remote.calls} == {10}
    assert {call.body["max_tokens"] for call in remote.calls} == {8192}

    parts = ds.dataset(fleet.folder / "out", format="parquet")
    rows = parts.to_table().sort_by("row_index").to_pylist()
    assert [row["output"] for row in rows] == ["negative"] * 4 + ["positive"] * 5
    assert [row["vote_share"] for row in rows] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert {len(row["outputs"]) for row in rows} == {10}
    assert [row["outputs"][0]["reasoning"] for row in rows] == texts
    assert [row["reasoning_tokens"] for row in rows] == [20] * ROWS
    assert json.loads(parts.schema.metadata[b"nightshift.resolved"])["max_tokens"] == 8192

    status = fleet.status("voted")
    assert status["reasoning_tokens"] == 20 * ROWS
    assert status["output_tokens"] == 50 * ROWS
    assert status["resolved"] == {"thinking": "server", "max_tokens": 8192}
    shown = fleet.command("status", "voted").stdout
    assert f"({20 * ROWS} of them thoughts)" in shown
    assert "at most 8,192 tokens" in shown

    estimate = json.loads(fleet.command("estimate", str(spec), "--json").stdout)
    assert estimate["reasoning_tokens_a_row"] == 20.0

    doubts = fleet.command("sample", "voted", "--doubt", "-n", "3", "--json")
    told = [json.loads(line) for line in doubts.stdout.splitlines()]
    assert [(row["row_index"], row["output"]["vote_share"]) for row in told] == [
        (4, 0.5),
        (3, 0.6),
        (5, 0.6),
    ]
    shown = fleet.command("sample", "voted", "--doubt", "-n", "2").stdout
    assert "row 5" in shown
    assert "row 9" not in shown
    page = fleet.folder / "doubt.html"
    assert fleet.command("sample", "voted", "--doubt", "--html", str(page)).returncode == 0
    assert "those with the least vote_share" in page.read_text()

    checked = fleet.command("verify", "voted")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    collected = fleet.folder / "all.jsonl"
    assert fleet.command("collect", "voted", "--to", str(collected)).returncode == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in collected.read_text().splitlines()]
    assert [line["outputs"] for line in lines] == [row["outputs"] for row in rows]


def test_a_job_that_tells_no_number_has_no_doubt(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 3)])
    spec = fleet.spec(function_spec("plain", fleet.folder / "in", fleet.folder / "out"))
    assert fleet.command("run", str(spec)).returncode == 0
    doubts = fleet.command("sample", "plain", "--doubt")
    assert doubts.returncode == 2
    assert "task.output.confidence: true" in doubts.stderr
