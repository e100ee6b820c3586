"""Specs that the release before kept in its ledger: read as they were, and still the same work."""

import json
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.spec import STORED, JobSpec

GENERATE: dict[str, Any] = {
    "name": "old",
    "pool": "night",
    "priority": 3,
    "input": {
        "uri": ["s3://b/a/", "b.parquet"],
        "format": "parquet",
        "id": "review_id",
        "columns": ["text", "budget"],
        "limit": 1000,
    },
    "task": {
        "kind": "generate",
        "messages": [
            {"role": "system", "content": "Name the mood."},
            {"role": "user", "content": "{{ text }}"},
        ],
        "prompt": None,
        "sampling": {
            "temperature": 3.5,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "max_tokens": 40,
            "max_tokens_column": "budget",
            "min_tokens": 1,
            "stop": ["\n"],
            "ignore_eos": True,
            "seed": 7,
        },
        "output": {"choice": ["good", "bad"], "json_schema": None, "regex": None, "grammar": None},
    },
    "engine": {
        "backend": "vllm",
        "model": "org/model",
        "revision": "v2",
        "args": {
            "max_model_len": 2048,
            "allowed_local_media_path": "/data",
            "chat_template": "t.jinja",
        },
    },
    "output": {"uri": "s3://b/out/", "format": "jsonl", "columns": ["product"], "schema": None},
    "batch": {"rows": 64},
    "retry": {"max_attempts": 5, "row_timeout_seconds": 30.0},
    "limits": {"max_parallel": 4, "max_failed_fraction": 0.25},
}

PLAIN: dict[str, Any] = {
    "name": "old",
    "pool": "default",
    "priority": 0,
    "input": {"uri": "x.jsonl", "format": None, "id": None, "columns": None, "limit": None},
    "task": {
        "kind": "generate",
        "messages": None,
        "prompt": "{{ text }}",
        "sampling": {
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": 256,
            "min_tokens": 0,
            "stop": [],
            "ignore_eos": False,
            "seed": 0,
        },
        "output": None,
    },
    "engine": {"backend": "vllm", "model": "m", "revision": None, "args": {}},
    "output": {"uri": "out", "format": "parquet", "columns": [], "schema": None},
    "batch": {"rows": 256},
    "retry": {"max_attempts": 3, "row_timeout_seconds": 600.0},
    "limits": {"max_parallel": None, "max_failed_fraction": 0.5},
}

FUNCTION: dict[str, Any] = {
    "name": "old",
    "pool": "night",
    "priority": 3,
    "input": {
        "uri": ["s3://b/a/", "b.parquet"],
        "format": "parquet",
        "id": "review_id",
        "columns": ["text", "budget"],
        "limit": 1000,
    },
    "task": {"kind": "function"},
    "engine": {"backend": "function", "callable": "rules:shout"},
    "output": {
        "uri": "s3://b/out/",
        "format": "jsonl",
        "columns": ["embedding"],
        "schema": {"score": "double"},
    },
    "batch": {"rows": 64},
    "retry": {"max_attempts": 5, "row_timeout_seconds": 30.0},
    "limits": {"max_parallel": 4, "max_failed_fraction": 0.25},
}


def form(**given: Any) -> dict[str, Any]:
    nothing = {"choice": None, "json_schema": None, "regex": None, "grammar": None}
    return {**GENERATE, "task": {**GENERATE["task"], "output": {**nothing, **given}}}


def with_column_parsed() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    task = {**PLAIN["task"], "output": form(json_schema=schema)["task"]["output"]}
    return {**PLAIN, "task": task, "output": {**PLAIN["output"], "columns": ["parsed"]}}


REMOTE = {"type": "object", "properties": {"mood": {"$ref": "http://schemas.example/mood.json"}}}

BEFORE = [
    (
        form(choice=["good", "bad"]),
        "c972ffb02cb2e5f9",
        "fb85e128b751634590ee09ff2efa61cf753a8352cd208715e129824cb206e99e",
    ),
    (
        form(json_schema=REMOTE),
        "c972ffb02cb2e5f9",
        "07c0bf9c5cde5469f9ae5148615526c44c9e4de65ddd2e9970cddc8d2329bfcd",
    ),
    (
        form(regex="[a-z]+"),
        "c972ffb02cb2e5f9",
        "d3a7e4f011448e6b87b99d707e84f8d55ff4c6e5dfa2b5454a078ddebb7d54e6",
    ),
    (
        form(grammar='root ::= "a"'),
        "c972ffb02cb2e5f9",
        "65dd7dda21563c082873834e27e7ebb0f7d57ff3888100b57ef1c440ae723004",
    ),
    (PLAIN, "1be7037201a65192", "0ca987b6f3193bb0ac7e3f9b2788b2b30b2b70c34eb2fd05803937f4203124b6"),
    (
        with_column_parsed(),
        "1be7037201a65192",
        "e9b1ca458d217168411bf88f4cec043ae4921fd86beb8c84d756d3dcda1ffd82",
    ),
    (
        FUNCTION,
        "895ea0e1c61a3f29",
        "970b91e3483116e5eaab15920985b9a91d022fd8ff718dc3df5ef4a511409e7a",
    ),
]
"""What was stored, with the engine key and the identity that the code of then had for it."""


@pytest.mark.parametrize(("stored", "engine_key", "identity"), BEFORE)
def test_a_job_of_the_release_before_is_read_as_the_same_work(
    stored: dict[str, Any], engine_key: str, identity: str
) -> None:
    spec = JobSpec.model_validate(stored, context=STORED)
    assert spec.engine_key == engine_key
    assert spec.identity == identity
    assert JobSpec.model_validate_json(spec.model_dump_json(by_alias=True), context=STORED) == spec


TABLE = json.loads(Path(__file__).with_name("specs_of_before.json").read_text())
"""Specs as users wrote them before there was thinking, samples and columns of numbers: as they were stored,
with the identity and the engine key that the code of then gave them. No entry ever changes.
"""


@pytest.mark.parametrize("before", TABLE, ids=range(len(TABLE)))
def test_a_spec_of_before_keeps_its_identity_and_its_engine_key(before: dict[str, Any]) -> None:
    written = JobSpec.model_validate(before["spec"])
    stored = JobSpec.model_validate(before["stored"], context=STORED)
    for spec in (written, stored):
        assert spec.identity == before["identity"]
        assert spec.engine_key == before["engine_key"]


def test_the_table_of_before_has_forty_different_specs() -> None:
    assert len({json.dumps(each["spec"]) for each in TABLE}) >= 40
