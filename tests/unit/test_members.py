"""Members of a JSON object as its text has them."""

import pytest

from nightshift.common.formats.jsonl.members import member, with_member

TEXT = ' {"a": 1e400, "model" : "x\\ud83d", "b": {"model": [1.50]},"model":{"c": NaN} } '


def test_a_member_is_the_text_that_it_was() -> None:
    assert member(TEXT, "a") == "1e400"
    assert member(TEXT, "model") == '"x\\ud83d"'
    assert member(TEXT, "b") == '{"model": [1.50]}'
    assert member(TEXT, "c") is None
    assert member("{ }", "a") is None


def test_members_of_one_name_get_another_value_and_nothing_else_changes() -> None:
    changed = ' {"a": 1e400, "model" : "team", "b": {"model": [1.50]},"model":"team" } '
    assert with_member(TEXT, "model", '"team"') == changed
    assert with_member(TEXT, "d", '"team"') == TEXT


@pytest.mark.parametrize("text", ["{}", '{"a":[]}', "\n{\t}\r\n"])
def test_an_object_without_the_member_stays(text: str) -> None:
    assert with_member(text, "model", "0") == text
