"""How pages draw the values of rows: briefly, as trees, as bars; bounded, and as text."""

import json
from typing import Any

import pytest

from nightshift.producer.serve.console import tree, values

HOSTILE = "<script>alert(1)</script>"

BRIEF: dict[str, tuple[Any, str]] = {
    "null": (None, '<span class="none">null</span>'),
    "empty text": ("", '<span class="none">empty text</span>'),
    "a text in a line": ("a\n  b", "a b"),
    "a number": (1.5, "1.5"),
    "one, which is not true": (1, "1"),
    "a truth": (True, "true"),
    "bytes": (b"\x00\x01", "2 bytes"),
    "a mapping": ({"a": [1, None], "b": ""}, "{a: [1, null], b: }"),
    "JSON": ('{"a": 1}', "{a: 1}"),
    "no JSON": ("{a}", "{a}"),
    "hostile": (HOSTILE, "&lt;script&gt;alert(1)&lt;/script&gt;"),
    "half of a character": ("\ud83d", "\ufffd"),
}


@pytest.mark.parametrize(("value", "shown"), BRIEF.values(), ids=BRIEF)
def test_a_value_in_brief(value: Any, shown: str) -> None:
    assert str(values.brief(value)) == shown


def test_a_brief_value_is_short_and_little_of_a_long_one_is_looked_at() -> None:
    class Endless(list[int]):
        def __iter__(self) -> Any:
            yield from range(1000)
            raise AssertionError("looked at far behind what is shown")

    assert len(str(values.brief("x" * 10**6))) == values.MOST_BRIEF
    assert len(str(values.brief(Endless([1])))) == values.MOST_BRIEF


def test_a_tree_opens_level_by_level_and_a_place_has_the_same_id_each_time() -> None:
    value = {"a": [1, {"b": ""}], "c": {}, HOSTILE: [None, [], True]}
    drawn = str(tree.tree(value, "row-1"))
    assert drawn.count("<details") == 4
    assert 'id="row-1-0"' in drawn
    assert drawn == str(tree.tree(value, "row-1"))
    assert HOSTILE not in drawn
    for said in ("3 fields", "2 items", "empty text", "no fields", "no items", "null", "true"):
        assert said in drawn
    ids = [part.split('"')[0] for part in drawn.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_a_tree_has_at_most_so_many_nodes_and_levels() -> None:
    wide = str(tree.tree({"a": [*range(10_000)], "b": 1}, "t"))
    assert wide.count("<li>") == tree.MOST_NODES
    assert "… and 9,501 more" in wide
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    drawn = str(tree.tree(deep, "t"))
    assert drawn.count("<details") == tree.MOST_DEPTH
    assert f"deeper than {tree.MOST_DEPTH} levels" in drawn
    text = str(tree.tree(["x" * 10**6], "t"))
    assert "characters more" in text
    assert len(text) < 10_000


@pytest.mark.parametrize(
    "value",
    [
        "[" * 50_000,
        '{"a": ' * 300 + "1" + "}" * 300,
        '["\\ud83d"]',
        "x" * 10**7,
        [float(at) for at in range(10**5)],
        {"a": {"b": "y" * 10**6}},
        json.dumps([HOSTILE] * 2_000),
    ],
)
def test_no_value_breaks_a_page_or_makes_it_huge(value: Any) -> None:
    row = dict.fromkeys(("output", "reasoning", "logprobs", "outputs", "probabilities"), value)
    for name in row:
        shown = str(values.column(name, row, "row-1"))
        assert HOSTILE not in shown
        assert len(shown.encode()) < 300_000
    assert len(str(values.said(row, list(row)))) < 10_000


def test_thoughts_are_folded_with_their_size() -> None:
    row = {"reasoning": "well", "reasoning_tokens": 1234}
    shown = str(values.column("reasoning", row, "row-1-out-2"))
    assert "<summary>Thoughts (1,234 tokens)</summary>" in shown
    assert 'id="row-1-out-2"' in shown
    assert "Thoughts (4 characters)" in str(values.column("reasoning", {"reasoning": "well"}, "r"))
    assert str(values.column("reasoning", {"reasoning": None}, "r")) == str(tree.NULL)


def test_labels_and_tokens_are_bars_and_samples_a_list() -> None:
    shares = {"probabilities": {"bad": 0.2, "good": 0.8, HOSTILE: None}}
    drawn = str(values.column("probabilities", shares, "r"))
    assert drawn.index("good") < drawn.index("80.0 %") < drawn.index("bad") < drawn.index("20.0 %")
    assert HOSTILE not in drawn
    tokens = [{"token": "It", "logprob": 0.0}, {"token": None, "logprob": None}]
    drawn = str(values.column("logprobs", {"logprobs": tokens * 100}, "r"))
    assert "200 tokens by probability" in drawn
    assert "100.0 %" in drawn
    assert f"… and {200 - values.MOST_BARS} more" in drawn
    samples = [{"output": "one", "reasoning": "hm"}, {"output": "two", "reasoning": None}]
    drawn = str(values.column("outputs", {"outputs": samples}, "r"))
    assert "Answer 2 of 2" in drawn
    assert "Thoughts (2 characters)" in drawn


SAID: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an answer, then figures": (
        {"output_tokens": 3, "reasoning": "hm", "output": "yes", "logprobs": []},
        ["output: yes", "output_tokens: 3"],
    ),
    "a response": (
        {"response": '{"choices": [{"message": {"content": "Hello"}}]}'},
        ["response: Hello"],
    ),
    "a response with tools": (
        {"response": '{"choices": [{"message": {"content": null}}]}'},
        ["response: {choices: [{message: {content: null}}]}"],
    ),
    "samples": ({"outputs": [{"output": "a"}, {"output": "b"}]}, ["outputs: [a, b]"]),
    "labels": ({"probabilities": {"good": 0.81, "bad": 0.19}}, ["probabilities: good 81%"]),
    "no labels": ({"probabilities": {}}, ["probabilities: {}"]),
}


@pytest.mark.parametrize(("row", "lines"), SAID.values(), ids=SAID)
def test_what_a_folded_row_says(row: dict[str, Any], lines: list[str]) -> None:
    assert [f"{name}: {value}" for name, value in values.said(row, list(row))] == lines
