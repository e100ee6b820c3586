"""The door for programs as docs/batch-api.md opens it: the official client, a fleet of this machine, a real vLLM."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from tests.support.example import EXAMPLES, Example
from tests.support.fleet import kill_tree, wait_until
from tests.support.serve import ENDED, free_port

pytestmark = pytest.mark.timeout(1200)

FLAGS = (
    "--engine-arg enforce_eager=true --engine-arg max_model_len=512 --engine-arg max_num_seqs=64"
)

OWN = ("id", "request_id", "created", "created_at", "completed_at")
"""Members that differ from run to run."""

MORE = [
    ("/v1/completions", {"prompt": "It broke after a day.", "max_tokens": 2, "logprobs": 1}),
    ("/v1/responses", {"input": "I love it.", "max_output_tokens": 4}),
]


def plain(value: Any) -> Any:
    """A line, or a part of it, without what differs from run to run."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items() if name not in OWN}
        case list():
            return [plain(each) for each in value]
        case float():
            return round(value, 3)
    return value


def lines(text: str) -> list[Any]:
    return [plain(json.loads(line)) for line in text.splitlines()]


def batch(client: OpenAI, data: bytes, endpoint: Any) -> tuple[Any, list[Any], list[Any]]:
    """What the page does, with what the two files hold at the end."""
    file = client.files.create(file=("requests.jsonl", data), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")

    def ended() -> Any:
        found = client.batches.retrieve(made.id)
        return found if found.status in ENDED else None

    done = wait_until(ended, 600, "the end of the batch")
    results, errors = (
        lines(client.files.content(each).text) if each else []
        for each in (done.output_file_id, done.error_file_id)
    )
    return done, results, errors


def test_the_words_of_the_page_lead_to_the_answers_that_run_gives(
    example: Callable[[str], Example],
) -> None:
    folder = example("openai_batch")
    requests = folder.folder / "requests.jsonl"
    port = free_port()
    folder.environment |= {
        "NIGHTSHIFT_SERVE_PORT": str(port),
        "NIGHTSHIFT_SERVE_MODELS": str(EXAMPLES / "reviews" / "models.yaml"),
    }
    page = (EXAMPLES.parent / "docs" / "batch-api.md").read_text()
    [table] = re.findall(r"NIGHTSHIFT_SERVE_MODELS=(examples\S+)", page)
    assert (EXAMPLES.parent / table) == EXAMPLES / "reviews" / "models.yaml"
    with (folder.folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "nightshift.producer.cli", "serve"],
            cwd=folder.folder,
            env=folder.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=9)
        wait_until(lambda: (folder.folder / "serve.log").read_text().count("startup complete"))
        assert [model.id for model in client.models.list()] == ["reviews"]
        done, results, errors = batch(client, requests.read_bytes(), "/v1/chat/completions")
        assert done.status == "completed"
        assert (done.request_counts.completed, done.request_counts.failed) == (33, 1)
        others = {}
        for endpoint, body in MORE:
            line = {
                "custom_id": "one",
                "method": "POST",
                "url": endpoint,
                "body": {"model": "reviews", "temperature": 0, **body},
            }
            _, others[endpoint], none = batch(client, json.dumps(line).encode(), endpoint)
            assert none == []
        server.send_signal(signal.SIGINT)
        assert server.wait(200) == 0
    finally:
        kill_tree(server)
    for name in ("SERVE_PORT", "SERVE_MODELS"):
        del folder.environment[f"NIGHTSHIFT_{name}"]
    model = str(EXAMPLES / "reviews" / "model")
    words = f"run requests.jsonl --format openai --model {model} --out out/ {FLAGS}"
    folder.nightshift(*words.split(), "--to", "results.jsonl", exit_code=1, seconds=500)
    assert lines((folder.folder / "results.jsonl").read_text()) == results
    assert lines((folder.folder / "results.errors.jsonl").read_text()) == errors
    contents = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in results
    }
    assert set(contents.values()) <= {"positive", "neutral", "negative"}
    (completion,), (response,) = others.values()
    assert completion["response"]["body"]["choices"][0]["text"]
    assert response["response"]["body"]["output"][-1]["content"][0]["text"] == "positive"
