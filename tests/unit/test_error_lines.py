"""The beginning of a file of errors: what each line says, and how many say the same."""

import json
from typing import Any

import pytest

from nightshift.producer.serve.console.error_lines import FIRST_LINES, failure, head_of


def line(error: Any = None, response: Any = None, custom_id: str | None = "a") -> bytes:
    said = {"id": "x", "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(said).encode()


def refused(body: Any, status: int = 400) -> bytes:
    return line(response={"status_code": status, "request_id": "r", "body": body})


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (line({"code": "request_timeout", "message": "too slow"}), "request_timeout", "too slow"),
        (refused({"error": {"message": "no", "code": 400}}), "400", "no"),
        (refused({"error": "no"}, 500), "500", "no"),
        (refused({"message": "no"}), "400", "no"),
        (refused({"detail": [{"loc": 1}]}), "400", '[{"loc": 1}]'),
        (refused({"error": {"code": 1}}), "400", '{"error": {"code": 1}}'),
        (refused("no"), "400", "no"),
        (refused(None), "400", "null"),
        (refused({"message": "half \ud800"}), "400", "half \ufffd"),
        (refused({"half \ud800": 1}), "400", '{"half \ufffd": 1}'),
    ],
)
def test_a_line_says_a_code_and_a_sentence(given: bytes, code: str, message: str) -> None:
    found = failure(given)
    assert (found.custom_id, found.code, found.message) == ("a", code, message)


def test_lines_of_one_cause_are_counted_together_and_a_line_that_is_cut_off_not_at_all() -> None:
    late = [line({"code": "timeout", "message": f"after {n} s"}, custom_id=None) for n in range(30)]
    lines = [refused({"error": {"message": "no"}}), *late]
    data = b"".join(each + b"\n" for each in lines)
    whole, part = head_of(data, is_whole=True), head_of(data[:-1], is_whole=False)
    assert [(each["rows"], each["kind"], each["message"]) for each in whole.causes] == [
        (30, "timeout", "after # s"),
        (1, "400", "no"),
    ]
    assert (whole.lines, whole.is_whole, len(whole.first)) == (31, True, FIRST_LINES)
    assert whole.first[1].custom_id == "—"
    assert (part.lines, part.is_whole) == (30, False)
    assert head_of(b"", is_whole=True).lines == 0


def test_an_id_with_half_of_a_character_can_be_shown() -> None:
    assert failure(line({"code": "c", "message": "m"}, custom_id="half \ud800")).custom_id == (
        "half \ufffd"
    )


def test_a_line_that_nests_too_deep_to_read_counts_and_says_so() -> None:
    deep = refused("deep").replace(b'"deep"', b"[" * 100_000 + b"]" * 100_000)
    found = head_of(deep + b"\n" + refused("no") + b"\n", is_whole=True)
    assert [each.message for each in found.first] == ["the line cannot be read", "no"]
