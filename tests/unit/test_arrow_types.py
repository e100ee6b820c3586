"""Types that output.schema can name."""

import pyarrow as pa
import pytest

from nightshift.common.formats.arrow_types import arrow_type, map_type


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("int64", pa.int64()),
        ("timestamp[us]", pa.timestamp("us")),
        ("timestamp[ms, Europe/Rome]", pa.timestamp("ms", "Europe/Rome")),
        ("list<float>", pa.list_(pa.float32())),
        (" list<list<string>> ", pa.list_(pa.list_(pa.string()))),
        ("list<float16>[384]", pa.list_(pa.float16(), 384)),
        (
            "struct<a: int64, b: list<struct<c: string, d: bool>>, e: timestamp[us, UTC]>",
            pa.struct(
                [
                    ("a", pa.int64()),
                    ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.bool_())]))),
                    ("e", pa.timestamp("us", "UTC")),
                ]
            ),
        ),
    ],
)
def test_a_name_is_a_type_and_what_arrow_prints_is_one_too(name: str, kind: pa.DataType) -> None:
    assert arrow_type(name).equals(kind)
    assert arrow_type(str(kind)).equals(kind)


@pytest.mark.parametrize("name", ["", "strng", "list<>", "list<nope>", "struct<a>", "list<int64"])
def test_a_name_that_is_no_type_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no type|is no field"):
        arrow_type(name)


def test_one_walk_reaches_every_nested_type_and_keeps_the_names_of_children() -> None:
    kind = pa.struct(
        [
            ("lists", pa.list_(pa.field("element", pa.large_list(pa.int8())))),
            ("fixed", pa.list_(pa.int8(), 2)),
            ("map", pa.map_(pa.int8(), pa.int8())),
        ]
    )
    wider = map_type(kind, lambda each: pa.int64() if each == pa.int8() else each)
    assert str(wider) == str(kind).replace("int8", "int64")
