"""Which rows of a batch run, which get the answer of another row, and what equal means."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightshift.common.spec import EmbedTask, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines import pooling
from nightshift.worker.engines.images import Image
from nightshift.worker.engines.protocol import Answer, Refusal, Request
from nightshift.worker.rows.sharing import BESIDE_BYTES, Answers, Rounds, keys

LATE = Refusal(RowErrorKind.TIMEOUT, "too late")

MODEL = {"backend": "vllm", "model": "m"}


@dataclass
class Batch:
    """Rows with the same letter are equal; "-" shares nothing."""

    letters: str
    answers: Answers = field(default_factory=Answers)
    taken: list[tuple[int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = [None if each == "-" else (1, each.encode()) for each in self.letters]
        indices = range(10, 10 + len(found))
        self.rounds = Rounds(
            found,
            indices,
            self.answers,
            lambda position, answer: self.taken.append((position, answer.answered_by)),
        )

    def run(self, failing: str = "") -> list[list[int]]:
        """Runs every round; rows in `failing` (by position) get no answer. The positions of each round."""
        rounds = []
        while True:
            positions = self.rounds.next()
            rounds.append(positions)
            for position in positions:
                answer = Answer({"output": self.letters[position]}, "stop", 5, 7, 3)
                self.rounds.ran(position, LATE if str(position) in failing else answer)
            if not self.rounds.over():
                return rounds


ROUNDS: dict[str, tuple[str, str, list[list[int]], list[tuple[int, int]]]] = {
    "all differ": ("abc", "", [[0, 1, 2]], []),
    "equal ones follow": ("abaab", "", [[0, 1]], [(2, 10), (3, 10), (4, 11)]),
    "some share nothing": ("-a-a", "", [[0, 1, 2]], [(3, 11)]),
    "a leader that fails": ("aaab", "0", [[0, 3], [1, 2]], []),
    "those run after it fail, too": ("aaa", "012", [[0], [1, 2]], []),
    "none": ("", "", [[]], []),
}


@pytest.mark.parametrize(("letters", "failing", "ran", "taken"), ROUNDS.values(), ids=ROUNDS)
def test_which_rows_run(
    letters: str, failing: str, ran: list[list[int]], taken: list[tuple[int, int]]
) -> None:
    batch = Batch(letters)
    assert batch.run(failing) == ran
    assert batch.taken == taken


def test_answers_of_earlier_batches_are_taken_at_once() -> None:
    first = Batch("ab")
    first.run(failing="1")
    second = Batch("bca", first.answers)
    assert second.run() == [[0, 1]]
    assert second.taken == [(2, 10)]


def two_at_once(first: str, second: str) -> tuple[Batch, Batch]:
    """Both begin their first rounds before a row of them is answered."""
    one = Batch(first)
    other = Batch(second, one.answers)
    assert one.rounds.next() == list(range(len(first)))
    return one, other


def test_rows_of_a_batch_that_runs_at_the_same_time_are_followed() -> None:
    one, other = two_at_once("ab", "bcba")
    assert other.rounds.next() == [1]
    one.rounds.ran(1, Answer({}))
    assert other.taken == [(0, 11), (2, 11)]
    other.rounds.ran(1, Answer({}))
    one.rounds.ran(0, Answer({}))
    assert other.taken[2:] == [(3, 10)]
    assert other.rounds.over() == one.rounds.over() == 0


@pytest.mark.parametrize("ends", ["refused", "stopped"])
def test_rows_whose_leader_in_another_batch_gets_no_answer_run_in_the_next_round(ends: str) -> None:
    one, other = two_at_once("a", "aab")
    assert other.rounds.next() == [2]
    if ends == "refused":
        one.rounds.ran(0, LATE)
    else:
        one.rounds.end()
    third = Batch("a", one.answers)
    assert third.rounds.next() == [0], "nobody leads any more"
    other.rounds.ran(2, Answer({}))
    assert other.rounds.over() == 2
    assert other.rounds.next() == [0]
    other.rounds.ran(0, Answer({}))
    assert other.taken == [(1, 10)]
    assert third.rounds.over() == other.rounds.over() == 0


def test_a_batch_does_not_wait_for_another_and_takes_no_answer_after_that() -> None:
    one, other = two_at_once("a", "a")
    assert other.rounds.next() == []
    assert other.rounds.over() == 1
    assert other.rounds.next() == [0]
    one.rounds.ran(0, Answer({}))
    assert other.taken == []


def test_a_row_that_runs_by_itself_ends_no_leader_of_another_batch() -> None:
    one, other = two_at_once("a", "a")
    other.rounds.next()
    other.rounds.over()
    assert other.rounds.next() == [0]
    other.rounds.ran(0, LATE)
    third = Batch("a", one.answers)
    assert third.rounds.next() == []
    one.rounds.ran(0, Answer({}))
    assert third.taken == [(0, 10)]


def test_a_row_whose_leader_went_elsewhere_runs_itself() -> None:
    batch = Batch("aab")
    assert batch.rounds.next() == [0, 2]
    batch.rounds.ran(2, Answer({}))  # row 0 was handed to another child
    assert batch.rounds.over() == 1
    assert batch.rounds.next() == [1]


def test_a_shared_answer_costs_no_tokens_and_names_the_row_that_ran() -> None:
    answers = Answers()
    Batch("a", answers).run()
    found = answers.get((1, b"a"))
    assert found == Answer({"output": "a"}, "stop", 0, 0, 0, answered_by=10)


def test_answers_are_kept_up_to_some_bytes_the_last_used_longest() -> None:
    answers = Answers(most_bytes=3 * BESIDE_BYTES + 400)
    for letter in "abc":
        answers.keep((1, letter.encode()), Answer({"output": letter}))
    assert answers.get((1, b"a")) is not None
    answers.keep((1, b"d"), Answer({"output": "d"}))
    left = [letter for letter in "abcd" if answers.get((1, letter.encode()))]
    assert left == ["a", "c", "d"]
    answers.keep((1, b"huge"), Answer({"output": "x" * 10_000}))
    assert answers.get((1, b"huge")) is None
    for _ in range(10):
        answers.keep((1, b"d"), Answer({"output": "d"}))
    assert answers.get((1, b"d")) is not None


@pytest.mark.slow
def test_nested_answers_count_with_all_that_is_in_them() -> None:
    def nested(number: int) -> Answer:
        spans = [{"begin": number * 1000 + at, "word": f"{number}-{at}"} for at in range(100)]
        return Answer({"found": {"spans": spans}, "vector": [number / 7] * 100})

    answers = Answers(most_bytes=2**20)
    tracemalloc.start()
    for number in range(1000):
        answers.keep((1, str(number).encode()), nested(number))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 2**19 < held < 1.5 * 2**20


def test_an_answer_that_is_kept_does_not_keep_its_pass() -> None:
    answers = Answers()
    key = (1, b"a")
    rounds = Rounds([key], [0], answers, lambda *_: None)
    assert rounds.next() == [0]
    (outcome, *_) = pooling.embeddings(
        np.ones((100, 8), np.float32), EmbedTask(kind="embed", text="t"), False, [1] * 100
    )
    rounds.ran(0, outcome)
    kept = answers.get(key)
    assert kept is not None
    assert kept.columns["embedding"].base is None
    (outcome, *_) = pooling.classifications(np.ones((100, 8), np.float32), [*"abcdefgh"], [1] * 100)
    other = Rounds([(1, b"b")], [0], answers, lambda *_: None)
    assert other.next() == [0]
    other.ran(0, outcome)
    kept = answers.get((1, b"b"))
    assert kept is not None
    assert kept.columns["probabilities"].numbers.base is None
    assert isinstance(outcome, Answer)
    assert kept.columns["probabilities"] == outcome.columns["probabilities"]


def chat(content: Any, **own: Any) -> Request:
    return Request(0, messages=[{"role": "user", "content": content}], **own)


def picture(value: bytes | str) -> Request:
    return chat([{"type": "text", "text": "what?"}, {"type": "image", "image": Image(value)}])


EQUAL: dict[str, tuple[Request, Request, bool]] = {
    "the same text": (chat("a"), chat("a"), True),
    "another text": (chat("a"), chat("b"), False),
    "another bound": (chat("a", max_tokens=3), chat("a", max_tokens=4), False),
    "a plain prompt": (chat("a", is_plain_prompt=True), chat("a"), False),
    "another role": (
        Request(0, messages=[{"role": "system", "content": "a"}]),
        chat("a"),
        False,
    ),
    "halves of a pair": (
        Request(0, text="ab", text_pair="c"),
        Request(0, text="a", text_pair="bc"),
        False,
    ),
    "the same image": (picture(b"png"), picture(b"png"), True),
    "another image": (picture(b"png"), picture(b"jpg"), False),
    "another address": (picture("a.png"), picture("b.png"), False),
    "bytes that look like an address": (picture("a.png"), picture(b"a.png"), False),
}


@pytest.mark.parametrize(("one", "other", "equal"), EQUAL.values(), ids=EQUAL)
def test_what_equal_requests_are(one: Request, other: Request, equal: bool) -> None:
    spec = parse_spec(spec_of({"kind": "generate", "prompt": "{{ a }}"}), "test")
    first, second = keys(1, spec, [one, other], None)
    assert first is not None
    assert (first == second) is equal
    assert keys(2, spec, [one], None) != [first], "another job"


CHANGED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "b"}],
    "is_plain_prompt": True,
    "max_tokens": 3,
    "template_arguments": {"enable_thinking": "False"},
    "sampling": {"top_p": 0.5},
    "text": "b",
    "text_pair": "c",
    "body": {"model": "m"},
}
"""A value of each field of a request that can change its answer."""


def test_every_field_of_a_request_but_its_row_can_change_the_answer() -> None:
    names = {each.name for each in fields(Request)}
    assert set(CHANGED) == names - {"row_index"}
    spec = parse_spec(spec_of({"kind": "generate", "prompt": "{{ a }}"}), "test")
    plain = chat("a", template_arguments={"enable_thinking": False})
    found = [
        keys(1, spec, [each], None)[0]
        for each in (plain, *(replace(plain, **{name: to}) for name, to in CHANGED.items()))
    ]
    assert len(set(found)) == len(names)
    assert keys(1, spec, [replace(plain, row_index=7)], None) == found[:1]


def test_a_row_with_a_temperature_of_its_own_shares_nothing() -> None:
    spec = parse_spec(
        spec_of(
            {
                "kind": "generate",
                "prompt": "{{ a }}",
                "sampling_columns": {"temperature": "heat"},
            }
        ),
        "test",
    )
    hot, cold = (chat("a", sampling={"temperature": heat}) for heat in (0.5, 0.0))
    assert keys(1, spec, [hot, hot], None) == [None, None]
    first, second = keys(1, spec, [cold, cold], None)
    assert first is not None
    assert first == second


def spec_of(task: dict[str, Any], engine: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": "x",
        "input": {"uri": "/in", "id": None if task["kind"] == "requests" else "id"},
        "task": task,
        "engine": engine or MODEL,
        "output": {"uri": "/out"},
    }


FUNCTION = {"backend": "function", "callable": "rules:f"}

SHARES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "greedy": ({"kind": "generate", "prompt": "a"}, MODEL, True),
    "by chance": (
        {"kind": "generate", "prompt": "a", "sampling": {"temperature": 0.5}},
        MODEL,
        False,
    ),
    "by chance, and said": (
        {"kind": "generate", "prompt": "a", "sampling": {"temperature": 0.5}, "dedupe": True},
        MODEL,
        True,
    ),
    "greedy, and refused": ({"kind": "generate", "prompt": "a", "dedupe": False}, MODEL, False),
    "vectors": ({"kind": "embed", "text": "a"}, MODEL, True),
    "a function": ({"kind": "function"}, FUNCTION, False),
    "a pure function": ({"kind": "function", "dedupe": True}, FUNCTION, True),
}


@pytest.mark.parametrize(("task", "engine", "shares"), SHARES.values(), ids=SHARES)
def test_which_tasks_share(task: dict[str, Any], engine: dict[str, Any], shares: bool) -> None:
    assert parse_spec(spec_of(task, engine), "test").task.shares is shares


def test_requests_share_at_temperature_0_or_where_the_spec_says_so() -> None:
    bodies: Sequence[dict[str, Any]] = [
        {"model": "m", "temperature": 0, "messages": []},
        {"messages": [], "temperature": 0.0, "model": "m"},
        {"model": "m", "messages": []},
    ]
    requests = [Request(row, body=body) for row, body in enumerate(bodies)]
    first, second, third = keys(
        1, parse_spec(spec_of({"kind": "requests"}), "test"), requests, None
    )
    assert first is not None
    assert third is None
    assert (first == second) is False, "0 and 0.0 are other texts"
    said = parse_spec(spec_of({"kind": "requests", "dedupe": True}), "test")
    assert None not in keys(1, said, requests, None)


def test_rows_of_a_pure_function_are_equal_but_for_their_id() -> None:
    spec = parse_spec(spec_of({"kind": "function", "dedupe": True}, FUNCTION), "test")
    rows = pa.table({"id": [1, 2, 3], "a": ["x", "x", "y"], "b": [None, None, None]})
    first, second, third = keys(1, spec, [Request(0), Request(1), Request(2)], rows)
    assert first == second != third
