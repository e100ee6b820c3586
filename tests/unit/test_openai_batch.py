"""OpenAI batch files: a body stays the text it was, a bad line is an error of its own row."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import input_rows, output_schema, part_rows
from nightshift.common.formats.jsonl import openai_batch
from nightshift.common.formats.jsonl.lines import BadLine
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import JobSpec, RequestsTask, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.producer.cli.flags import Flags
from nightshift.producer.cli.job_spec import job_spec
from nightshift.producer.results import openai_batch_results
from nightshift.producer.serve.api_batches.batch_file import Problem, judge
from nightshift.producer.submit import openai_batch_file
from nightshift.producer.submit.checks import check_columns
from nightshift.producer.submit.planning import planner
from nightshift.worker.rows.prompts import Renderer

SPEC: dict[str, Any] = {
    "name": "asked",
    "input": {"uri": "batch.jsonl", "format": "openai"},
    "engine": {"backend": "vllm", "model": "M"},
    "output": {"uri": "out"},
}

CHAT = "/v1/chat/completions"


def line(custom_id: Any = "a", body: str = "{}", **members: Any) -> bytes:
    """A request whose body is this very text; a member that is None is left out."""
    first = {"custom_id": custom_id, "method": "POST", "url": CHAT, **members}
    said = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in first.items() if each]
    return ("{" + ", ".join([*said, f'"body": {body}']) + "}").encode()


@st.composite
def pieces(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """Arrays and objects as text, with odd white space."""
    space = st.text(" \t\r", max_size=2)
    keys = st.sampled_from(["body", "a", "\u00e9", "custom_id"]).map(json.dumps)
    if draw(st.booleans()):
        members = draw(st.lists(inner, max_size=4))
        return "[" + ",".join(draw(space) + each + draw(space) for each in members) + "]"
    pairs = draw(st.lists(st.tuples(keys, inner), max_size=4, unique_by=lambda pair: pair[0]))
    said = [f"{draw(space)}{key}{draw(space)}:{draw(space)}{each}" for key, each in pairs]
    return "{" + ",".join(said) + draw(space) + "}"


SCALARS = st.one_of(
    st.sampled_from(["null", "true", "1.0", "-0", "1e400", "0.1000000000000000055511151231257827"]),
    st.integers(-(10**60), 10**60).map(str),
    st.text().map(lambda text: json.dumps(text, ensure_ascii=True)),
    st.text(st.characters(exclude_categories=["Cs"])).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
)
BODIES = st.recursive(SCALARS, pieces, max_leaves=8).map(lambda text: '{"of": ' + text + "}")


@given(body=BODIES, before=BODIES, after=BODIES)
def test_a_body_is_the_text_that_it_was(body: str, before: str, after: str) -> None:
    text = (
        f'  {{"others": {before}, "custom_id": "\u00e9\\u00e9", "other": {after},\t"method":"POST",'
        f'"url" : "{CHAT}" , "body"\r: {body} }} \n'
    )
    row = openai_batch.parse_request(text.encode())
    assert row == {"custom_id": "\u00e9\u00e9", "method": "POST", "url": CHAT, "body": body}


@pytest.mark.parametrize(
    ("text", "says", "known"),
    [
        (b"{no json", "no valid JSON", None),
        (b"[1]", "not an object", None),
        (b'{"custom_id": "a"}', "method is missing", "a"),
        (line(method=None), "method is missing", "a"),
        (line(custom_id=None), "custom_id is missing", None),
        (line(custom_id=7), "custom_id is no string", None),
        (line().replace(b'"a"', b'""'), "custom_id is empty", None),
        (line(method="GET"), "method is 'GET', not POST", "a"),
        (line(url=["x"]), "url is no string", "a"),
        (line(body="[1]"), "body is no JSON object", "a"),
        (line(body="null"), "body is no JSON object", "a"),
        (line().replace(b"{", b'{"custom_id": "b", ', 1), "key 'custom_id' is repeated", None),
        (line(body='{"n": 1, "n": 2}'), "the key 'n' is repeated in an object", None),
        (line(body='{"n": ' + "9" * 5000 + "}"), "too many digits", None),
        (line(body='{"n": ' + "[" * 200_000 + "}"), "nested too deeply", None),
    ],
)
def test_a_line_that_is_no_request_says_why_and_keeps_its_id(
    text: bytes, says: str, known: str | None
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        openai_batch.parse_request(text)
    row = caught.value.row if isinstance(caught.value, BadLine) else {}
    assert row.get("custom_id") == known


def batch(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


def test_every_line_is_a_row_good_or_bad(tmp_path: Path) -> None:
    body = '{"model": "m", "n": 1e400, "text": "\\ud800 \u00e9"}'
    path = batch(
        tmp_path / "b.jsonl",
        [line("a", body), b"", b"{broken", line("c\ud800"), line("d", body="3"), b"  "],
    )
    info = storage.stat(str(path))
    source = SourceFile(info.uri, "openai", info.size, info.fingerprint, 4, 0)
    rows = input_rows.read_file_rows(
        Descriptor(source, RowRanges.of((0, 4)), Locator(0, 0, source.size)),
        ["custom_id", "method", "url", "body"],
        ReadCache(0),
        schema=openai_batch.SCHEMA,
        id_column="custom_id",
    )
    assert rows.row_index == [0, 2]
    assert rows.table.column("custom_id").to_pylist() == ["a", r"c\ud800"]
    assert rows.table.column("body").to_pylist() == [body, "{}"]
    assert {index: bad.kind for index, bad in rows.bad.items()} == {
        1: RowErrorKind.BAD_RECORD,
        3: RowErrorKind.BAD_RECORD,
    }
    assert "line 3" in rows.bad[1].message
    assert rows.bad[3].message.endswith("line 5: body is no JSON object")
    assert rows.bad_table.column("custom_id").to_pylist() == [None, "d"]


def test_a_plan_has_the_columns_of_the_format_whatever_the_lines_hold(tmp_path: Path) -> None:
    path = batch(tmp_path / "b.jsonl", [b"{broken", line("b", '{"x": 1}'), line("c", '{"x": []}')])
    spec = asked(path)
    plan = planner.plan(spec.input, 2, columns=spec.read_columns)
    assert plan.schema == openai_batch.SCHEMA
    assert plan.rows_total == 3
    check_columns(spec, plan.schema)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_batch_file_may_be_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"b.jsonl{suffix}"
    lines = b"\xef\xbb\xbf" + b"\n".join([line("a"), b"{broken", line("c", '{"x": 1}')])
    path.write_bytes(gzip.compress(lines) if suffix else lines)
    infos = [storage.stat(str(path))]
    spec = openai_batch_file.with_endpoint(
        asked(path, output={"uri": str(tmp_path / "out")}), infos
    )
    assert isinstance(spec.task, RequestsTask)
    assert spec.task.endpoint == CHAT
    openai_batch_file.check_unique_ids(infos)
    plan = planner.plan(
        spec.input, 8, columns=spec.read_columns, infos=infos, output_uri=spec.output.uri
    )
    (only,) = plan.batches()
    rows = input_rows.read_rows(spec, only, None, ReadCache(0), plan.schema)
    assert rows.table.column("custom_id").to_pylist() == ["a", "c"]
    assert rows.table.column("body").to_pylist() == ["{}", '{"x": 1}']
    assert f"{path} line 2" in rows.bad[1].message

    more = b"\n" + line("a")
    path.write_bytes(path.read_bytes() + (gzip.compress(more) if suffix else more))
    with pytest.raises(BadInput, match="stands twice"):
        openai_batch_file.check_unique_ids([storage.stat(str(path))])


# ---------------------------------------------------------------- spec


def asked(path: Path, **sections: Any) -> JobSpec:
    source = {**SPEC["input"], "uri": str(path), **sections.pop("input", {})}
    return parse_spec({**SPEC, "input": source, **sections}, "test")


def test_the_format_implies_the_task_and_the_task_the_format() -> None:
    by_format = parse_spec(SPEC, "test")
    by_task = parse_spec(
        {**SPEC, "input": {"uri": "batch.jsonl"}, "task": {"kind": "requests"}}, "test"
    )
    assert by_format == by_task
    assert isinstance(by_format.task, RequestsTask)
    assert by_format.input.id == "custom_id"
    assert by_format.passed_columns == ["custom_id"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"task": {"kind": "generate", "prompt": "x"}}, "go together"),
        ({"input": {"uri": "x", "format": "jsonl"}, "task": {"kind": "requests"}}, "go together"),
        ({"input": {**SPEC["input"], "id": "url"}}, "input.id of an OpenAI batch file"),
        ({"engine": {"backend": "function", "callable": "a:b"}}, "not requests"),
        ({"task": {"kind": "requests", "endpoint": "/v1/moderations"}}, "endpoint"),
    ],
)
def test_what_does_not_go_with_a_batch_file_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_spec({**SPEC, **changed}, "test")


def test_the_endpoint_is_that_of_the_first_line_that_names_one(tmp_path: Path) -> None:
    path = batch(tmp_path / "b.jsonl", [b"", b"{broken", line(url="/v1/embeddings"), line("b")])
    spec = openai_batch_file.with_endpoint(asked(path), [storage.stat(str(path))])
    assert isinstance(spec.task, RequestsTask)
    assert spec.task.endpoint == "/v1/embeddings"
    assert spec.task.runner == "embed"
    own = asked(path, task={"kind": "requests", "endpoint": "/v1/completions"})
    assert openai_batch_file.with_endpoint(own, [storage.stat(str(path))]) is own


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            line(url="/v1/moderations"),
            "line 1: the url is '/v1/moderations'; the supported urls are /v1/c",
        ),
        (b'{"text": "x"}', "is not an OpenAI batch file"),
        (b"\x1f\x8bx", "gzip"),
    ],
)
def test_a_file_that_asks_for_nothing_we_know_is_refused(
    tmp_path: Path, text: bytes, says: str
) -> None:
    path = batch(tmp_path / "b.jsonl", [text])
    with pytest.raises(BadInput, match=says):
        openai_batch_file.with_endpoint(asked(path), [storage.stat(str(path))])


@pytest.mark.parametrize(
    ("field", "endpoint", "is_refused"),
    [
        ({"stream": True}, "/v1/chat/completions", True),
        ({"stream": True}, "/v1/responses", True),
        ({"model": 7}, "/v1/chat/completions", True),
        ({"background": True}, "/v1/responses", True),
        ({"previous_response_id": "resp_1"}, "/v1/responses", True),
        ({"conversation": "conv_1"}, "/v1/responses", True),
        ({"background": False, "previous_response_id": None}, "/v1/responses", False),
        ({"model": "x", "stream": False, "store": True}, "/v1/responses", False),
    ],
)
def test_what_no_batch_can_take_is_refused_before_any_engine_and_in_the_file_of_a_batch(
    field: dict[str, Any], endpoint: str, is_refused: bool
) -> None:
    body = {"model": "m", "input": "x", **field}
    row = {"url": endpoint, "body": json.dumps(body)}
    task = RequestsTask(kind="requests", endpoint=endpoint)  # type: ignore[arg-type]
    requests, refused = Renderer(task).render(pa.Table.from_pylist([row]), [5])
    assert bool(refused) is is_refused is not bool(requests)
    if is_refused:
        assert refused[5].kind is RowErrorKind.REFUSED
        assert refused[5].columns["status_code"] == 400
        error = json.loads(refused[5].columns["response"])["error"]
        assert (error["param"], error["message"]) == (next(iter(field)), refused[5].message)
    text = json.dumps({"custom_id": "a", "method": "POST", **row, "body": body}).encode()
    assert isinstance(judge(text, 1, endpoint), Problem) is is_refused


# ---------------------------------------------------------------- ids


def test_an_id_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    swapped = b'{"body": {"custom_id": "b"}, "custom_id": "\\u0062", "url": "u", "method": "POST"}'
    one = batch(tmp_path / "1.jsonl", [line("a"), b"", b"{broken", line("b"), b"{broken"])
    two = batch(tmp_path / "2.jsonl", [line("c"), b"", swapped, line("a"), line("b")])
    infos = [storage.stat(str(path)) for path in (one, two)]
    with pytest.raises(BadInput, match=r"'b' stands twice, in .*1.jsonl line 4 and in .*2.jsonl l"):
        openai_batch_file.check_unique_ids(infos)
    openai_batch_file.check_unique_ids(infos, limit=5)
    openai_batch_file.check_unique_ids(infos[:1])


@given(ids=st.lists(st.integers(0, 30), max_size=30))
def test_ids_pass_if_and_only_if_they_are_all_different(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int]
) -> None:
    path = batch(tmp_path_factory.mktemp("ids") / "b.jsonl", [line(f"id {each}") for each in ids])
    infos = [storage.stat(str(path))]
    if len(set(ids)) == len(ids):
        openai_batch_file.check_unique_ids(infos)
    else:
        with pytest.raises(BadInput, match="stands twice"):
            openai_batch_file.check_unique_ids(infos)


def test_equal_hashes_of_different_ids_are_no_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_batch_file, "hash", lambda _: 7, raising=False)
    path = batch(tmp_path / "b.jsonl", [line(each) for each in "abc"])
    openai_batch_file.check_unique_ids([storage.stat(str(path))])


# ---------------------------------------------------------------- results


HALF = st.sampled_from(
    ["\ud800", "\udfff", "\\", "u", "d800", "\\ud800", "\ufffd", "a", "\U0001f600"]
)
IDS = (
    st.lists(HALF, min_size=1, max_size=8)
    .map("".join)
    .filter(
        # JSON makes one character of both halves in their order.
        lambda text: "\ud800\udfff" not in text
    )
)


@given(custom_id=IDS, is_ascii=st.booleans())
def test_the_line_of_a_result_has_the_custom_id_of_its_request_with_half_characters_too(
    custom_id: str, is_ascii: bool
) -> None:
    members = {"method": "POST", "url": CHAT, "body": {}, "custom_id": custom_id}
    asked = json.dumps(members, ensure_ascii=is_ascii).encode("utf-8", "backslashreplace")
    assert json.loads(asked)["custom_id"] == custom_id
    stored = openai_batch.parse_request(asked)["custom_id"]
    written, _ = result(custom_id=stored)
    assert json.loads(written.decode("utf-8"))["custom_id"] == custom_id


@given(one=IDS, other=IDS)
def test_ids_that_differ_are_stored_as_texts_that_differ(one: str, other: str) -> None:
    assert (openai_batch.stored_id(one) == openai_batch.stored_id(other)) == (one == other)


def test_ids_that_differ_in_half_a_character_are_no_doubles(tmp_path: Path) -> None:
    ids = ["k\ud800", "k\ud801", r"k\ud800", "k\ufffd"]
    path = batch(tmp_path / "b.jsonl", [line(each) for each in ids])
    openai_batch_file.check_unique_ids([storage.stat(str(path))])
    path = batch(tmp_path / "b.jsonl", [line(each) for each in (*ids, "k\ud801")])
    with pytest.raises(BadInput, match=r"'k\\\\ud801' stands twice, in .* line 2 and in .* line 5"):
        openai_batch_file.check_unique_ids([storage.stat(str(path))])


@example(custom_id="", body='{"of": "\x85"}', row=0)
@given(custom_id=st.text(st.characters(exclude_categories=["Cs"])), body=BODIES, row=st.integers(0))
def test_an_answer_is_the_text_of_the_server_in_one_line(
    custom_id: str, body: str, row: int
) -> None:
    pretty = body.replace("\t", "\n").replace("\r", "\r\n")
    written, is_answer = result(
        row_index=row % 2**40,
        custom_id=custom_id,
        status_code=200,
        request_id='r"1',
        response=pretty,
    )
    assert is_answer
    assert written.count(b"\n") == 1
    assert json.loads(written) == {
        "id": f"batch_req_{'ab' * 10}{row % 2**40:012x}",
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": 'r"1', "body": json.loads(body)},
        "error": None,
    }
    kept = body.replace("\t", " ").replace("\r", " ").replace(" ", "")
    for end in "\x85\u2028\u2029":  # ends of lines for some readers
        kept = kept.replace(end, f"\\u{ord(end):04x}")
    assert kept.encode() in written.replace(b" ", b"")


def test_a_line_of_results_is_one_line_for_every_reader() -> None:
    said = "a\x85b\u2028c\u2029d"
    body = json.dumps({"text": said}, ensure_ascii=False)
    answer, _ = result(custom_id=said, status_code=200, request_id=said, response=body)
    error, _ = result(custom_id=said, error={"kind": "timeout", "message": said})
    for written in (answer, error):
        (found,) = written.decode().splitlines()
        assert json.loads(found)["custom_id"] == said
    assert json.loads(answer)["response"]["body"] == {"text": said}
    assert json.loads(error)["error"]["message"] == said


def test_what_a_server_refused_keeps_its_status_and_the_rest_has_a_code() -> None:
    failure = {"kind": "refused", "message": "no"}
    said = {"status_code": 404, "request_id": "r", "response": '{"error": {"code": 404}}'}
    refused, is_answer = result(custom_id="a", error=failure, **said)
    assert not is_answer
    assert json.loads(refused)["response"]["status_code"] == 404
    assert json.loads(refused)["error"] is None
    for kind, code in (("timeout", "request_timeout"), ("engine_died", "engine_died")):
        lost, _ = result(custom_id=None, error={"kind": kind, "message": 'sa"id'})
        found = json.loads(lost)
        assert (found["custom_id"], found["response"]) == (None, None)
        assert found["error"] == {"code": code, "message": 'sa"id'}


def result(**columns: Any) -> tuple[bytes, bool]:
    """The line of one row of a part."""
    row = {name: columns.get(name) for name in openai_batch_results.COLUMNS}
    row["row_index"] = row["row_index"] or 0
    job = cast("Job", SimpleNamespace(identity="ab" * 32))
    table = pa.Table.from_pylist([row], schema=PART)
    ((written, is_answer),) = openai_batch_results.lines(job, iter(table.to_batches()))
    return written, is_answer


PART = pa.schema(
    [
        ("row_index", pa.int64()),
        ("custom_id", pa.string()),
        ("status_code", pa.int32()),
        ("request_id", pa.string()),
        ("response", pa.string()),
        ("error", output_schema.ERROR_TYPE),
    ]
)


@pytest.mark.parametrize(
    ("results", "errors"),
    [
        ("/a/results.jsonl", "/a/results.errors.jsonl"),
        ("s3://b/x.results.jsonl", "s3://b/x.errors.jsonl"),
    ],
)
def test_errors_go_beside_the_results(results: str, errors: str) -> None:
    assert openai_batch_results.errors_file(results) == errors


def test_results_are_lines() -> None:
    with pytest.raises(BadInput, match=r"ends in \.jsonl"):
        openai_batch_results.errors_file("results.parquet")


# ---------------------------------------------------------------- flags


def test_a_batch_file_and_a_model_are_a_whole_command() -> None:
    spec = job_spec("data/batch.jsonl", Flags(format="openai", model="M"))
    assert spec == asked(
        Path("data/batch.jsonl"), name="batch", output={"uri": "batch-out"}, task=TASK
    )


TASK = {"kind": "requests"}


def test_what_a_request_says_itself_is_no_flag() -> None:
    with pytest.raises(BadInput, match="--temperature does not go with --format openai"):
        job_spec("b.jsonl", Flags(format="openai", model="M", temperature=0.5))
    with pytest.raises(BadInput, match="nothing says what to run"):
        job_spec("b.jsonl", Flags(format="openai"))


def test_only_files_of_the_job_itself_are_replaced(tmp_path: Path) -> None:
    spec = asked(tmp_path / "b.jsonl", output={"uri": str(tmp_path / "out")})
    results, errors = tmp_path / "x.results.jsonl", tmp_path / "x.errors.jsonl"
    openai_batch_results.check_targets(spec, "ab" * 32, str(results))
    results.write_bytes(result(custom_id="a", response="{}", status_code=200)[0])
    errors.write_bytes(b"")
    openai_batch_results.check_targets(spec, "ab" * 32, str(results))
    errors.write_text('{"id": "batch_req_123", "custom_id": "a"}')
    with pytest.raises(BadInput, match=r"x\.errors\.jsonl exists and is not of this job"):
        openai_batch_results.check_targets(spec, "ab" * 32, str(results))
    with pytest.raises(BadInput, match="inside the output directory"):
        openai_batch_results.check_targets(spec, "ab" * 32, str(tmp_path / "out" / "y.jsonl"))


def test_collected_lines_have_the_ids_of_the_requests(tmp_path: Path) -> None:
    ids = ["k\ud800", r"k\ud800", "k"]
    table = pa.table(
        {"custom_id": [*map(openai_batch.stored_id, ids), None], "error": [1, 2, 3, 4]}
    )
    target = str(tmp_path / "all.jsonl")
    assert part_rows.write_batches(target, table.to_batches(), table.schema, "openai", {}) == 4
    lines = Path(target).read_text("utf-8").splitlines()
    assert [json.loads(each)["custom_id"] for each in lines] == [*ids, None]


def test_the_tokens_of_thoughts_are_those_that_the_answers_tell() -> None:
    bodies = [
        {"usage": {"completion_tokens_details": {"reasoning_tokens": 3}}},
        {"usage": {"output_tokens_details": {"reasoning_tokens": 4}}},
        {"usage": {"completion_tokens_details": None}},
        {"usage": None, "text": '"reasoning_tokens": 9'},
        {"usage": {"completion_tokens_details": {"reasoning_tokens": None}}},
        None,
    ]
    texts = [None if body is None else json.dumps(body) for body in bodies]
    batch = pa.record_batch({"response": texts})
    assert openai_batch_results.reasoning_tokens(batch) == 7
