"""Batch files as `serve` validates them, beside what a submit says of the same file."""

from nightshift.producer.serve.api_batches import batch_file
from tests.unit.test_openai_batch import CHAT, line


def test_ids_that_differ_in_half_a_character_are_no_doubles_at_the_api_either() -> None:
    ids = ["k\ud800", "k\ud801", r"k\ud800", "k\ufffd"]
    lines = [line(each, '{"model": "m"}') for each in ids]
    limits = batch_file.Limits(requests=9, bytes=9_999, embedding_inputs=9)
    assert batch_file.read(lambda: enumerate(lines, 1), CHAT, limits, skip=True).problems == []
    doubled = [*lines, lines[1]]
    found = batch_file.read(lambda: enumerate(doubled, 1), CHAT, limits, skip=False).problems
    assert len(found) == 1
    read = batch_file.read(lambda: enumerate(doubled, 1), CHAT, limits, skip=True)
    assert read.problems == []
