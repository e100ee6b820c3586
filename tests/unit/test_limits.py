"""What the specs of a tenant may do, in cases that have a name."""

from datetime import UTC, datetime
from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import parse_spec
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.serve.tenants.limits import (
    bound,
    place_refusal,
    quota_refusal,
    refusal,
)

FUNCTION = {"backend": "function", "callable": "rules:shout"}
REMOTE = {"backend": "openai", "model": "m", "base_url": "http://10.0.0.1/v1"}
GENERATE = {"kind": "generate", "prompt": "{{ text }}"}


def tenant(**facts: Any) -> Tenant:
    given: dict[str, Any] = {
        "name": "acme",
        "weight": 1.0,
        "max_priority": 0,
        "pools": None,
        "max_rows": None,
        "max_tokens": None,
        "max_files": None,
        "max_bytes": None,
        "budget": None,
        "budget_from": datetime(2026, 1, 1, tzinfo=UTC),
        "roots": ("/data/acme", "s3://acme/in"),
        "callables": True,
        "remotes": True,
        **facts,
    }
    return Tenant(**given)


def spec(uri: str = "/data/acme/in.jsonl", output: str = "/data/acme/out", **sections: Any) -> Any:
    given: dict[str, Any] = {
        "name": "x",
        "input": {"uri": uri},
        "task": {"kind": "function"},
        "engine": FUNCTION,
        "output": {"uri": output},
        **sections,
    }
    return parse_spec(given, "here")


@pytest.mark.parametrize(
    ("who", "asked", "says"),
    [
        pytest.param(tenant(), spec(), None, id="below a root"),
        pytest.param(tenant(), spec("s3://acme/in/a", "s3://acme/in/b"), None, id="in a bucket"),
        pytest.param(tenant(), spec("file:///data/acme/a.jsonl"), None, id="file:// below a root"),
        pytest.param(tenant(), spec("/data//acme/a.jsonl"), None, id="two slashes are one"),
        pytest.param(tenant(), spec("/data/acme/../other/a"), "outside", id="two dots"),
        pytest.param(tenant(), spec("file:///data/acme/%2e%2e/x"), "outside", id="escaped dots"),
        pytest.param(tenant(), spec("file:///etc/passwd"), "outside", id="file:// elsewhere"),
        pytest.param(tenant(), spec("//data/other"), "outside", id="slashes before another"),
        pytest.param(tenant(), spec("in.jsonl"), "outside", id="a relative path"),
        pytest.param(tenant(), spec("/data/acme-2/a"), "outside", id="a name that begins alike"),
        pytest.param(tenant(), spec("s3://acme/other"), "outside", id="another prefix"),
        pytest.param(
            tenant(), spec("s3://acme/inside"), "outside", id="a prefix that begins alike"
        ),
        pytest.param(tenant(), spec("s3://other/in"), "outside", id="the bucket of another"),
        pytest.param(tenant(), spec("delta:/data/acme/t"), None, id="a table below a root"),
        pytest.param(tenant(), spec("delta:s3://acme/in/t"), None, id="a table in a bucket"),
        pytest.param(tenant(), spec("delta:/data/other/t"), "outside", id="a table elsewhere"),
        pytest.param(tenant(), spec("delta:t"), "outside", id="a relative table"),
        pytest.param(tenant(), spec("iceberg:lake.a.t"), None, id="a table of a catalog"),
        pytest.param(tenant(), spec(output="/data/other/out"), "outside", id="output of another"),
        *(
            pytest.param(
                tenant(),
                spec(task=GENERATE, engine={"backend": "vllm", "model": model}),
                "is a relative path",
                id=f"the model {model}",
            )
            for model in ("./x", "../x", ".", "..", "~/x", "~root")
        ),
        pytest.param(
            tenant(),
            spec(task=GENERATE, engine={"backend": "vllm", "model": "org/model"}),
            None,
            id="a model of the hub",
        ),
        pytest.param(tenant(roots=()), spec(), "it has none", id="no root, no spec"),
        pytest.param(tenant(), spec(priority=1), "above 0", id="a higher priority"),
        pytest.param(tenant(max_priority=5), spec(priority=5), None, id="the highest priority"),
        pytest.param(tenant(pools=("a",)), spec(), "pool default", id="another pool"),
        pytest.param(tenant(pools=()), spec(), "none", id="no pool"),
        pytest.param(tenant(pools=("a",)), spec(pool="a"), None, id="its pool"),
        pytest.param(tenant(callables=False), spec(), "functions", id="no functions"),
        pytest.param(
            tenant(remotes=False), spec(task=GENERATE, engine=REMOTE), "server", id="no servers"
        ),
    ],
)
def test_a_spec_is_held_to_its_tenant(who: Tenant, asked: Any, says: str | None) -> None:
    why = refusal(who, asked, None)
    assert why is None if says is None else why is not None and says in why


def test_dots_in_the_name_of_an_object_are_no_way_out() -> None:
    with pytest.raises(BadInput, match=r"no \. or \.\."):
        refusal(tenant(), spec("s3://acme/in/../../other/x"), None)


@pytest.mark.parametrize(
    ("uri", "is_refused"),
    [
        ("/data/acme/in.jsonl", False),
        ("/data/acme/store/bee/files/file-1.jsonl", True),
        ("/data/acme/store", True),
        ("/data/acme", True),
        ("/data/acme/*.jsonl", False),
        ("/data/acme/**/*.jsonl", True),
        ("/data/acme/st*", True),
        ("/data/acme/store/b*", True),
        ("/data/acme/store-2/in.jsonl", False),
    ],
)
def test_the_store_of_all_tenants_is_in_no_ones_folders(uri: str, is_refused: bool) -> None:
    assert (refusal(tenant(), spec(uri), "/data/acme/store") is not None) is is_refused


@pytest.mark.parametrize(
    ("uri", "as_input", "as_output"),
    [
        ("/data/acme/store/acme/outputs/a-1", True, True),
        ("/data/acme/store/acme/outputs/a-1/", True, True),
        ("/data/acme/store/acme/outputs/a-1/part-*.parquet", True, False),
        ("/data/acme/store/acme/outputs/a-1/../../files/x", False, False),
        ("/data/acme/store/acme/outputs/*", False, False),
        ("/data/acme/store/acme/outputs/a*/x", False, False),
        ("/data/acme/store/acme/outputs", False, False),
        ("/data/acme/store/acme/outputs/..", False, False),
        ("/data/acme/store/bee/outputs/a-1", False, False),
        ("/data/acme/store/acme/inputs/file-1.csv", True, False),
        ("/data/acme/store/acme/files/file-1.jsonl", False, False),
    ],
)
def test_of_the_store_a_tenant_has_its_uploads_and_its_own_results(
    uri: str, as_input: bool, as_output: bool
) -> None:
    for who in (tenant(), tenant(roots=())):
        store, output = "/data/acme/store", "/data/acme/store/acme/outputs/b-2"
        assert (refusal(who, spec(uri, output), store) is None) is as_input
        source = "/data/acme/store/acme/inputs/file-1.csv"
        assert (refusal(who, spec(source, uri), store) is None) is as_output


def images(**task: Any) -> Any:
    content = [{"type": "image", "column": "picture"}, {"type": "text", "text": "What is this?"}]
    messages = [{"role": "user", "content": content}]
    engine = {"backend": "vllm", "model": "a/b"}
    return spec(task={"kind": "generate", "messages": messages, **task}, engine=engine)


def test_images_named_by_uris_lie_in_the_folders_of_the_tenant() -> None:
    assert bound(tenant(), images()).task.image_roots == ["/data/acme", "s3://acme/in"]
    narrower = images(image_roots=["/data/acme/pictures"])
    assert bound(tenant(), narrower) == narrower
    assert refusal(tenant(), narrower, None) is None
    assert refusal(tenant(), images(image_roots=["/data/bee"]), None) is not None
    text = spec(task=GENERATE, engine={"backend": "vllm", "model": "a/b"})
    assert bound(tenant(), text) == text


def test_a_model_of_the_operator_is_for_every_tenant_in_its_pools() -> None:
    """Where files lie and which engine answers is the operator's choice there."""
    none = tenant(roots=(), callables=False, remotes=False)
    asked = spec("/store/x", "/store/y", task=GENERATE, engine=REMOTE)
    assert place_refusal(none, asked) is None
    assert place_refusal(tenant(pools=("a",)), asked) is not None
    assert place_refusal(none, asked.model_copy(update={"priority": 1})) is not None


@pytest.mark.parametrize(
    ("limits", "reserved", "says"),
    [
        ({}, (10**9, 10**9), None),
        ({"max_rows": 100}, (90, 0), None),
        ({"max_rows": 100}, (91, 0), "10 rows are asked for, 91 are open already"),
        ({"max_rows": 9}, (0, 0), "may have 9 at once"),
        ({"max_tokens": 500}, (0, 300), None),
        ({"max_tokens": 500}, (0, 301), "200 tokens are asked for, 301 are open already"),
    ],
)
def test_ten_rows_of_twenty_tokens_are_within_or_beyond(
    limits: dict[str, Any], reserved: tuple[int, int], says: str | None
) -> None:
    found = quota_refusal(tenant(**limits), reserved, (10, 200))
    assert found is None if says is None else says in str(found)
