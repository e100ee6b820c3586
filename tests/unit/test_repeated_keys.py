"""Lines of JSON that repeat a key are no rows."""

import pytest

from nightshift.common.formats.jsonl.lines import parse_row


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"id": 1, "id": 2}', "id"),
        (b'{"id" : 1, "a":2, "id"\t:3}', "id"),
        (b'{"id": 1, "x": {"a": 1, "a": 1}}', "a"),
        (b'{"id": 1, "x": [{"b": 1}, {"a": 1, "a": 2}]}', "a"),
        (b'{"\\u0069d": 1, "id": 2}', "id"),
        (b'{"x": {"a": 1, "a": 2}, "id": 1, "id": 2}', "a"),
    ],
)
def test_a_line_that_repeats_a_key_is_refused_with_the_key(line: bytes, key: str) -> None:
    with pytest.raises(ValueError, match=rf"the key '{key}' is repeated"):
        parse_row(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": 1, "text": "a \\": b : c"}',
        b'{"a": {"id": 1}, "b": {"id": 1}, "id": 2}',
        b'{"id": 1, "x": [{"a": 1}, {"a": 2}]}',
    ],
)
def test_equal_keys_of_different_objects_and_colons_in_texts_are_no_repetition(line: bytes) -> None:
    assert parse_row(line)


@pytest.mark.timeout(30)
def test_a_line_of_many_keys_is_refused_at_once() -> None:
    """A search through the keys before each key took an hour for such a line."""
    keys = b",".join(b'"k%d":0' % number for number in range(300_000))
    with pytest.raises(ValueError, match="the key 'k299999' is repeated"):
        parse_row(b"{" + keys + b',"k299999":1}')
