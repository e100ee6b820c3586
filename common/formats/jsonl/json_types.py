"""Arrow types of parsed JSON values, and the type that holds the values of two."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from nightshift.common.formats.arrow_types import map_type

MAX_DEPTH = 16
"""A value nested deeper than this is kept as JSON text."""

_INT64 = range(-(2**63), 2**63)


def json_type(values: Sequence[Any], depth: int = 0) -> pa.DataType:
    """The Arrow type of parsed JSON values: string where they are mixed, too large or too deep.

    The type of nothing but nulls is null.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.null()
    if kinds == {bool}:
        return pa.bool_()
    if kinds <= {int, float}:
        return _number_type(values, kinds)
    if kinds == {list} and depth < MAX_DEPTH:
        items = list(chain.from_iterable(value for value in values if value is not None))
        return pa.list_(json_type(items, depth + 1))
    if kinds == {dict} and depth < MAX_DEPTH:
        objects = [value for value in values if value is not None]
        keys = dict.fromkeys(chain.from_iterable(objects))
        return pa.struct(
            [(key, json_type([value.get(key) for value in objects], depth + 1)) for key in keys]
        )
    return pa.string()


def _number_type(values: Sequence[Any], kinds: set[type]) -> pa.DataType:
    numbers = [value for value in values if type(value) is int]
    if kinds == {int}:
        return pa.int64() if min(numbers) in _INT64 and max(numbers) in _INT64 else pa.string()
    return pa.float64() if all(abs(value) <= 2**53 for value in numbers) else pa.string()


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds values of both; string where they differ."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return _nested(one, other, merged_type) or pa.string()


def widened(planned: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The planned type, with keys of nested objects that only the found type has."""
    return _nested(planned, found, widened) or planned


def _nested(
    one: pa.DataType, other: pa.DataType, join: Callable[[pa.DataType, pa.DataType], pa.DataType]
) -> pa.DataType | None:
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(join(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name)
            fields[field.name] = field.type if known is None else join(known, field.type)
        return pa.struct(list(fields.items()))
    return None


def storable_type(kind: pa.DataType) -> pa.DataType:
    """The type as a file can keep it: only nulls, and objects without a key, become strings."""
    return map_type(kind, _storable)


def _storable(kind: pa.DataType) -> pa.DataType:
    says_nothing = pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields)
    return pa.string() if says_nothing else kind


def accepts(target: pa.DataType, found: pa.DataType) -> bool:
    """True where pyarrow makes the target of values of the found type without changing them."""
    types = pa.types
    if types.is_null(found) or target == found:
        return True
    if types.is_integer(found):
        return types.is_integer(target) or types.is_floating(target)
    if types.is_floating(found):
        return types.is_floating(target)
    if types.is_struct(found) and types.is_struct(target):
        wanted = {field.name: field.type for field in target}
        return all(
            field.name in wanted and accepts(wanted[field.name], field.type) for field in found
        )
    if types.is_list(found) and (types.is_list(target) or types.is_fixed_size_list(target)):
        return accepts(target.value_type, found.value_type)
    return False
