"""Arranged copies: every row comes out as it would have come out of its file, in another order."""

import errno
import gzip
import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats import input_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import to_rows
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.producer.external_sort import boxes
from nightshift.producer.submit.arrange import arrange, copy
from nightshift.producer.submit.arrange.arrange import ArrangedPlan, arranged_plan
from nightshift.producer.submit.arrange.order import sort_columns
from nightshift.producer.submit.arrange.savings import Worth
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan


@dataclass
class Given:
    """Batches that were planned before."""

    schema: pa.Schema
    given: list[Descriptor]

    def batches(self) -> list[Descriptor]:
        return self.given


def spec_of(
    tmp_path: Path, *uris: Path, template: str = "{{ doc }} {{ question }}", **more: Any
) -> JobSpec:
    return parse_spec(
        {
            "name": "arranged",
            "input": {"uri": [str(uri) for uri in uris], **more.pop("input", {})},
            "task": more.pop("task", {"kind": "generate", "prompt": template}),
            "engine": {"backend": "vllm", "model": "some/model", **more.pop("engine", {})},
            "output": {"uri": str(tmp_path / "out"), **more.pop("output", {})},
            "batch": {"rows": 7, "arrange": "prefix", **more.pop("batch", {})},
        },
        "a test",
    )


def plan_of(spec: JobSpec) -> Plan:
    return planner.plan(
        spec.input,
        spec.batch.rows,
        batch_bytes=spec.batch.bytes,
        columns=spec.read_columns,
        output_uri=spec.output.uri,
    )


def ordered(spec: JobSpec, plan: Plan, cache_tokens: int | None = None) -> Plan | ArrangedPlan:
    return arranged_plan(spec, plan, output_uri=spec.output.uri, cache_tokens=cache_tokens)


def read_all(
    spec: JobSpec, plan: Plan | ArrangedPlan | Given, columns: Sequence[str] | None
) -> tuple[list[int], dict[int, Any], dict[int, Any]]:
    """The row indices as they come, good rows and bad ones by index."""
    cache = ReadCache(2**24)
    order: list[int] = []
    good: dict[int, Any] = {}
    bad: dict[int, Any] = {}
    for batch in plan.batches():
        rows = input_rows.read_rows(spec, batch, columns, cache, plan.schema, as_arranged=True)
        assert sorted([*rows.row_index, *rows.bad]) == list(batch.rows)
        assert len(rows.row_index) + len(rows.bad) <= spec.batch.rows
        order += rows.row_index
        good |= dict(zip(rows.row_index, to_rows(rows.table), strict=True))
        passed = to_rows(rows.bad_table.select([spec.input.id] if spec.input.id else []))
        bad |= {
            index: (failure, row)
            for (index, failure), row in zip(
                rows.bad.items(), passed or [{}] * len(rows.bad), strict=True
            )
        }
        lone = replace(batch, rows=type(batch.rows).from_indices([list(batch.rows)[-1]]))
        found = input_rows.read_rows(spec, lone, columns, cache, plan.schema)
        assert [*found.row_index, *found.bad] == list(lone.rows)
    return order, good, bad


def documents(count: int = 20, each: int = 3, seed: int = 1) -> list[dict[str, Any]]:
    rows = [
        {"id": f"{doc}-{at}", "doc": f"the document {doc} says", "question": f"what of {at}?"}
        for doc in range(count)
        for at in range(each)
    ]
    random.Random(seed).shuffle(rows)
    return rows


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def same_rows(spec: JobSpec, columns: Sequence[str] | None = None) -> list[int]:
    """Both plans give the same rows, good and bad; the order of the arranged one."""
    plan = plan_of(spec)
    arranged = ordered(spec, plan)
    assert isinstance(arranged, ArrangedPlan)
    wanted = spec.read_columns if columns is None else columns
    _, good, bad = read_all(spec, plan, wanted)
    order, found, found_bad = read_all(spec, arranged, wanted)
    assert found == good
    assert found_bad == bad
    assert sorted([*found, *found_bad]) == list(range(plan.rows_total))
    return order


def without_more(row: dict[str, Any]) -> dict[str, Any]:
    more = row["doc"].get("more")
    return {**row, "doc": {**row["doc"], "more": more}}


# ---------------------------------------------------------------- which order


def sorted_by(task: dict[str, Any], **more: Any) -> list[str]:
    base: dict[str, Any] = {
        "name": "x",
        "input": {"uri": "rows.parquet", **more},
        "task": task,
        "engine": {"backend": "vllm", "model": "m"},
        "output": {"uri": "out"},
    }
    if task["kind"] == "function":
        base["engine"] = {"backend": "function", "callable": "rules:mark"}
    schema = pa.schema([(name, pa.string()) for name in ("id", "a", "b", "c")])
    return sort_columns(parse_spec(base, "a test"), schema)


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ({"kind": "generate", "prompt": "{{ b }} and {{ a }} and {{ b }}"}, ["b", "a"]),
        (
            {"kind": "generate", "prompt": "{% if c %}{{ a }}{% else %}{{ b | upper }}{% endif %}"},
            ["c", "a", "b"],
        ),
        ({"kind": "generate", "prompt": "nothing of the row"}, []),
        (
            {
                "kind": "generate",
                "messages": [
                    {"role": "system", "content": "{{ c }}"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "column": "a"},
                            {"type": "text", "text": "{{ b }}"},
                        ],
                    },
                ],
            },
            ["c", "a", "b"],
        ),
        (
            {
                "kind": "generate",
                "messages_column": "b",
                "chat_template_kwargs": {"reasoning_effort": {"column": "c"}},
                "sampling_columns": {"temperature": "a"},
            },
            ["c", "b", "a"],
        ),
        ({"kind": "embed", "text": "{{ a }}"}, ["a"]),
        ({"kind": "score", "text": "{{ b }}", "text_pair": "{{ a }}"}, ["b", "a"]),
        ({"kind": "function"}, ["a", "b", "c"]),
    ],
)
def test_rows_are_sorted_by_the_columns_of_their_requests_in_the_order_shown(
    task: dict[str, Any], columns: list[str]
) -> None:
    assert sorted_by(task, id="id") == columns


# ---------------------------------------------------------------- the copy


def test_rows_with_one_document_stand_side_by_side(tmp_path: Path) -> None:
    rows = documents()
    spec = spec_of(tmp_path, write_lines(tmp_path / "rows.jsonl", rows), input={"id": "id"})
    order = same_rows(spec)
    assert [rows[at]["id"] for at in order] == [
        row["id"] for row in sorted(rows, key=lambda row: (row["doc"], row["question"]))
    ]


def test_rows_with_one_beginning_of_a_chat_stand_side_by_side(tmp_path: Path) -> None:
    chats = [
        [{"role": "system", "content": f"the document {doc} says"}, {"role": "user", "content": q}]
        for doc in range(5)
        for q in ("why?", "who?", "when?")
    ]
    random.Random(3).shuffle(chats)
    pq.write_table(pa.table({"chat": chats}), tmp_path / "rows.parquet")
    task = {"kind": "generate", "messages_column": "chat"}
    order = same_rows(spec_of(tmp_path, tmp_path / "rows.parquet", task=task))
    first = [chats[at][0]["content"] for at in order]
    assert 1 + sum(one != other for one, other in pairwise(first)) == 5


@pytest.mark.parametrize("characters", [300, 900, 3000, 20_000])
@pytest.mark.parametrize("columns", [1, copy.DIGESTED_COLUMNS])
def test_long_rows_with_the_same_beginning_stand_side_by_side(
    tmp_path: Path, characters: int, columns: int
) -> None:
    """A common beginning, then one of three parts, then one of three others, then what is the row's own."""

    def text(*numbers: int) -> str:
        return "".join(f"{number} " * (characters // 2) for number in numbers)

    beginnings = [(0, part, last) for part in range(3) for last in range(3)]
    names = [f"c{at}" for at in range(columns)]
    rows = [
        dict.fromkeys(names[:-1], "same") | {names[-1]: text(*beginning, at), "of": beginning}
        for at in range(4)
        for beginning in beginnings
    ]
    random.Random(5).shuffle(rows)
    file = write_lines(tmp_path / "rows.jsonl", rows)
    template = " ".join(f"{{{{ {name} }}}}" for name in names)
    order = same_rows(spec_of(tmp_path, file, template=template))
    for length in (2, 3):
        found = [rows[at]["of"][:length] for at in order]
        pieces = 1 + sum(one != other for one, other in pairwise(found))
        assert pieces == len(set(found))


@pytest.mark.slow
def test_rows_larger_than_the_memory_of_the_sort_are_arranged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "MEMORY", "64MB")
    rng = random.Random(4)
    words = "".join(rng.choice("abcdefgh ") for _ in range(40_000))
    docs = [f"{rng.randrange(300):06} {words}" for _ in range(3000)]  # 120 MB
    pq.write_table(
        pa.table({"doc": docs, "question": [f"q{at}" for at in range(3000)]}),
        tmp_path / "rows.parquet",
        row_group_size=250,
    )
    spec = spec_of(tmp_path, tmp_path / "rows.parquet")
    arranged = ordered(spec, plan_of(spec))
    assert isinstance(arranged, ArrangedPlan)
    order = [row for batch in arranged.batches() for row in batch.rows]
    assert sorted(order) == list(range(3000))
    with storage.open_input(arranged.uri) as handle:
        found = pq.read_table(handle, columns=["doc"]).column("doc").to_pylist()
    assert found == sorted(docs)


def test_columns_that_are_not_read_may_differ_between_files(tmp_path: Path) -> None:
    for name, kind in (("a", pa.int64()), ("b", pa.float64())):
        table = pa.table({"doc": ["x", "y"], "question": ["p", "q"], "n": pa.array([1, 2], kind)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    same_rows(spec_of(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet"))


def test_equal_rows_keep_the_order_of_the_dataset(tmp_path: Path) -> None:
    rows = [{"doc": "one", "question": "same"}] * 30
    assert same_rows(spec_of(tmp_path, write_lines(tmp_path / "rows.jsonl", rows))) == list(
        range(30)
    )


def test_lines_that_are_broken_nested_or_of_another_type_come_out_as_out_of_their_files(
    tmp_path: Path,
) -> None:
    rows: list[Any] = [
        {**row, "doc": {"text": row["doc"], "tags": ["a", at]}, "n": at}
        for at, row in enumerate(documents())
    ]
    late = [{**rows[at], "doc": {"text": "late", "more": {"deep": at}}} for at in range(5)]
    rows[1000:] = []
    filler = [{**rows[0], "id": f"filler-{at}"} for at in range(1000)]
    broken = [
        "{broken",
        json.dumps({"id": None, "doc": {"text": "x"}, "question": "q", "n": 1}),
        "",
    ]
    file = write_lines(tmp_path / "rows.jsonl", [*rows, *filler, *late, *broken])
    other = write_lines(tmp_path / "z.jsonl", [*rows[:3], {**rows[4], "n": "no number"}])
    spec = spec_of(
        tmp_path,
        file,
        other,
        template="{{ doc.text }} {{ question }} {{ n }}",
        input={"id": "id"},
        batch={"rows": 64},
    )
    plan = plan_of(spec)
    _, good, bad = read_all(spec, plan, spec.read_columns)
    order, found, found_bad = read_all(spec, ordered(spec, plan), spec.read_columns)
    assert len(order) == 60 + 1000 + 5 + 3 + 1  # n is text, since one file has a text
    assert found_bad == bad
    assert len(bad) == 2
    # Keys that the first rows lack come with the rows that were read together.
    assert {at: without_more(row) for at, row in found.items()} == {
        at: without_more(row) for at, row in good.items()
    }
    assert sum(row["doc"].get("more") is not None for row in found.values()) == 5
    assert sum("more" not in row["doc"] for row in found.values()) > 500


def test_a_column_that_the_job_does_not_read_is_carried_and_makes_no_row_bad(
    tmp_path: Path,
) -> None:
    head = [{**row, "score": 1} for row in documents()]
    filler = [{**head[0], "id": f"filler-{at}"} for at in range(1000)]
    file = write_lines(tmp_path / "rows.jsonl", [*head, *filler, {**head[1], "score": "high"}])
    spec = spec_of(tmp_path, file, batch={"rows": 64})
    plan = plan_of(spec)
    order, _, bad = read_all(spec, ordered(spec, plan), spec.read_columns)
    assert len(order) == 1061
    assert not bad
    _, scores, bad = read_all(spec, ordered(spec, plan), ["score"])
    assert {row["score"] for row in scores.values()} == {1, None}
    assert not bad


def test_types_of_parquet_come_out_as_they_went_in(tmp_path: Path) -> None:
    count = 40
    rng = random.Random(3)
    table = pa.table(
        {
            "doc": pa.array([f"d{rng.randrange(9)}\0ü" for _ in range(count)]),
            "question": pa.array([None if at % 7 == 0 else f"q{at}" for at in range(count)]),
            "i8": pa.array(range(count), pa.int8()),
            "u64": pa.array([2**64 - 1 - at for at in range(count)], pa.uint64()),
            "f32": pa.array([0.1 * at for at in range(count)], pa.float32()),
            "nan": pa.array([float("nan") if at == 3 else -0.0 for at in range(count)]),
            "day": pa.array([date(2026, 1, 1 + at % 28) for at in range(count)]),
            "at": pa.array(
                [datetime(2026, 1, 1, 1, at, tzinfo=UTC) for at in range(count)],
                pa.timestamp("us", "Europe/Berlin"),
            ),
            "ns": pa.array([10**18 + at for at in range(count)], pa.timestamp("ns")),
            "money": pa.array([Decimal(f"{at}.25") for at in range(count)], pa.decimal128(12, 2)),
            "bytes": pa.array([bytes([at, 0, 255]) for at in range(count)]),
            "list": pa.array(
                [[at, None] if at % 3 else None for at in range(count)], pa.list_(pa.int16())
            ),
            "nested": pa.array([{"a": at, "b": [{"c": str(at)}]} for at in range(count)]),
            "none": pa.nulls(count),
            "large": pa.array(["x" * at for at in range(count)], pa.large_string()),
            "row_index": pa.array(range(count)),
            "half": pa.array([None if at == 5 else at / 2 for at in range(count)], pa.float16()),
            "took": pa.array(range(count), pa.duration("us")),
            "map": pa.array(
                [[("a", at), ("b", None)][: at % 3] for at in range(count)],
                pa.map_(pa.string(), pa.int64()),
            ),
            "clock": pa.array(range(count), pa.time32("ms")),
            "huge": pa.array([Decimal(f"{at}.5") for at in range(count)], pa.decimal256(50, 2)),
            "fixed": pa.array([bytes([at] * 4) for at in range(count)], pa.binary(4)),
            "zoned": pa.array([10**18 + at for at in range(count)], pa.timestamp("ns", "UTC")),
            "uuid": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([bytes([at] * 16) for at in range(count)], pa.binary(16))
            ),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=11)
    spec = spec_of(tmp_path, tmp_path / "rows.parquet")
    plan = plan_of(spec)
    arranged = ordered(spec, plan)
    names = table.column_names
    cache = ReadCache(2**24)
    plain = pa.concat_tables(
        [
            input_rows.read_rows(spec, each, names, cache, plan.schema).table
            for each in plan.batches()
        ]
    )
    pieces, order = [], []
    for batch in arranged.batches():
        rows = input_rows.read_rows(spec, batch, names, cache, plan.schema)
        pieces.append(rows.table)
        order += rows.row_index
    found = pa.concat_tables(pieces).take(pa.array(sorted(range(count), key=order.__getitem__)))
    assert found.schema.equals(plain.schema)
    without = [name for name in names if name != "nan"]
    assert found.select(without).equals(plain.select(without))
    assert str(found.column("nan").to_pylist()) == str(plain.column("nan").to_pylist())


def test_csv_compressed_lines_and_folders_are_arranged_together(tmp_path: Path) -> None:
    rows = documents()
    folder = tmp_path / "in"
    for day, half in (("1", rows[:30]), ("2", rows[30:])):
        place = folder / f"day={day}"
        place.mkdir(parents=True)
        header = "id,doc,question\n"
        lines = [f"{row['id']},{row['doc']},{row['question']}\n" for row in half[:15]]
        (place / "rows.csv").write_text(header + "".join(lines))
        with gzip.open(place / "rows.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in half[15:])
    spec = spec_of(
        tmp_path,
        folder,
        template="{{ day }} {{ doc }}",
        input={"id": "id", "partitioning": "hive"},
    )
    same_rows(spec)


def test_a_limit_and_batches_of_large_rows_hold(tmp_path: Path) -> None:
    rows = [{**row, "doc": row["doc"] * 100} for row in documents()]
    file = write_lines(tmp_path / "rows.jsonl", rows)
    spec = spec_of(tmp_path, file, input={"limit": 25}, batch={"bytes": 8000})
    arranged = ordered(spec, plan_of(spec))
    sizes = [len(batch.rows) for batch in arranged.batches()]
    assert sum(sizes) == 25
    assert max(sizes) < 7


def test_rows_are_numbered_behind_those_of_an_earlier_generation(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "rows.jsonl", documents())
    spec = spec_of(tmp_path, file)
    arranged = ordered(spec, plan_of(spec))
    assert isinstance(arranged, ArrangedPlan)
    order, good, _ = read_all(spec, arranged.behind(1000), spec.read_columns)
    assert sorted(order) == list(range(1000, 1060))
    _, first, _ = read_all(spec, arranged, spec.read_columns)
    assert {index - 1000: row for index, row in good.items()} == first


def test_a_copy_that_is_gone_is_made_again_and_missed_until_then(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "rows.jsonl", documents())
    spec = spec_of(tmp_path, file)
    plan = plan_of(spec)
    arranged = ordered(spec, plan)
    assert isinstance(arranged, ArrangedPlan)
    first = storage.checksum(arranged.uri)
    before = read_all(spec, arranged, spec.read_columns)
    lost = Given(arranged.schema, list(arranged.batches()))
    Path(arranged.uri).unlink()
    with pytest.raises(SourceChanged, match=r"is gone; run `nightshift retry JOB --dead`"):
        read_all(spec, lost, spec.read_columns)
    arrange.restore(spec, arranged.files, plan.schema)
    assert storage.checksum(arranged.uri) == first
    assert read_all(spec, arranged, spec.read_columns) == before


def test_two_threads_that_arrange_one_input_sort_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path, write_lines(tmp_path / "rows.jsonl", documents()))
    plan, sorts = plan_of(spec), list[int]()
    both_looked = threading.Barrier(2, timeout=120)
    places = copy.places

    def write(*given: Any) -> None:
        both_looked.wait()  # both have found that there is no copy
        copy_write(*given)

    def counted(*given: Any) -> Any:
        sorts.append(1)
        return places(*given)

    copy_write = copy.write
    monkeypatch.setattr(copy, "write", write)
    monkeypatch.setattr(copy, "places", counted)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: ordered(spec, plan), range(2)))
    assert sorts == [1]
    assert all(isinstance(each, ArrangedPlan) for each in found)


def test_what_cannot_be_arranged_is_refused_in_one_sentence_and_auto_leaves_it(
    tmp_path: Path,
) -> None:
    file = write_lines(tmp_path / "rows.jsonl", documents())
    constant = spec_of(tmp_path, file, template="the same for all")
    plan = plan_of(constant)
    with pytest.raises(BadInput, match="which show none"):
        ordered(constant, plan)
    auto = spec_of(tmp_path, file, template="the same for all", batch={"arrange": "auto"})
    assert ordered(auto, plan) is plan


def test_rows_are_sorted_by_values_that_the_sort_has_no_type_for(tmp_path: Path) -> None:
    table = pa.table(
        {
            "doc": pa.array([at % 5 / 2 for at in range(40)], pa.float16()),
            "question": pa.array(
                [[(f"k{at % 3}", at)] for at in range(40)], pa.map_(pa.string(), pa.int64())
            ),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    order = same_rows(spec_of(tmp_path, tmp_path / "rows.parquet"))
    docs = [at % 5 for at in order]
    assert sum(one != other for one, other in pairwise(docs)) == 4


def test_auto_copies_no_binary_column_that_the_job_does_not_read(tmp_path: Path) -> None:
    rows = documents(400, 20)
    table = pa.table(
        {
            "doc": [row["doc"] * 40 for row in rows],
            "question": [row["question"] for row in rows],
            "image": [b"png"] * len(rows),
        }
    )
    pq.write_table(table.select(["doc", "question"]), tmp_path / "texts.parquet")
    pq.write_table(table, tmp_path / "images.parquet")
    texts = spec_of(tmp_path, tmp_path / "texts.parquet", batch={"arrange": "auto"})
    assert isinstance(ordered(texts, plan_of(texts), 1_000), ArrangedPlan)
    auto = spec_of(tmp_path, tmp_path / "images.parquet", batch={"arrange": "auto"})
    plan = plan_of(auto)
    assert ordered(auto, plan, 1_000) is plan
    prefix = spec_of(tmp_path, tmp_path / "images.parquet")
    assert isinstance(ordered(prefix, plan_of(prefix)), ArrangedPlan)


@pytest.mark.parametrize("wanted", ["prefix", "auto"])
def test_a_full_folder_of_temporary_files_is_an_outage_and_auto_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space is left on device")

    monkeypatch.setattr(boxes, "_boxed", full)
    monkeypatch.setattr(arrange, "judged", lambda *_: Worth(True, 1, 1, 1))
    spec = spec_of(
        tmp_path, write_lines(tmp_path / "rows.jsonl", documents()), batch={"arrange": wanted}
    )
    plan = plan_of(spec)
    if wanted == "auto":
        assert ordered(spec, plan) is plan
    else:
        with pytest.raises(StorageUnavailable, match="no space is left"):
            ordered(spec, plan)
