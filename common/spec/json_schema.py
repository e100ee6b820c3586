"""JSON schemas of answers: which are usable, how answers are checked, which give typed columns."""

from typing import Any, Literal

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from nightshift.common.spec import patterns

Scalar = Literal["string", "integer", "number", "boolean"]

SCALARS: dict[type, Scalar] = {str: "string", int: "integer", float: "number", bool: "boolean"}

FORMATS = ("date", "email", "ipv4", "ipv6", "uuid")
"""Values of `format` that are checked: those that need only Python. Others are annotations, as in the
standard.
"""

REF_STEPS = 20
"""Most references that lead to each other; a longer chain counts as a circle."""


def validator(schema: dict[str, Any]) -> Validator:
    """Checks answers by the draft that `$schema` names, else by 2020-12; fetches nothing."""
    return _dialect(schema)(
        schema, registry=Registry(), format_checker=jsonschema.FormatChecker(FORMATS)
    )


def refuse_unusable(schema: dict[str, Any]) -> None:
    """ValueError in words for what is no JSON schema or names something outside of itself."""
    try:
        _dialect(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"is no JSON schema: {error.message}") from error
    except RecursionError as error:
        raise ValueError("is no JSON schema: it is nested too deeply") from error
    resource = _resource(schema)
    waiting = [(resource, Registry().resolver_with_root(resource))]
    while waiting:
        resource, around = waiting.pop()
        resolver = around.in_subresource(resource)
        _refuse_patterns(resource.contents)
        for key in ("$ref", "$dynamicRef"):
            name = resource.contents.get(key) if isinstance(resource.contents, dict) else None
            if isinstance(name, str):
                try:
                    resolver.lookup(name)
                except Unresolvable as error:
                    raise ValueError(
                        f"{key} {name!r} leads out of the schema: write what it stands for under "
                        "$defs, nothing is fetched"
                    ) from error
        waiting += [(each, resolver) for each in resource.subresources()]


def _refuse_patterns(schema: object) -> None:
    """ValueError for a pattern of a schema, or of the names of its properties, that cannot be matched."""
    found = schema if isinstance(schema, dict) else {}
    names = found.get("patternProperties")
    names = list(names) if isinstance(names, dict) else []
    # jsonschema joins the patterns if the schema has additionalProperties.
    for pattern in (found.get("pattern"), *names, "|".join(names)):
        try:
            patterns.compiled(pattern if isinstance(pattern, str) else "")
        except patterns.UnusablePatternError as error:
            raise ValueError(
                f"has a pattern that cannot be used, {pattern[:100]!r}: {error}"
            ) from error


def scalar_properties(schema: dict[str, Any]) -> dict[str, Scalar] | None:
    """The type of each property of an object schema where all are scalar; else None.

    Scalar are string, integer, number, boolean, an enum or const of one of them, each also
    nullable, and a reference to such. `output.parsed` has one field for each.
    """
    found = _resolved(schema, schema)
    properties = found.get("properties")
    if found.get("type") not in ("object", ["object"]) or not isinstance(properties, dict):
        return None
    scalars: dict[str, Scalar] = {}
    for name, each in properties.items():
        kinds = _kinds(schema, each)
        if kinds is None:
            return None
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) != 1:
            return None
        scalars[name] = kinds.pop()
    return scalars or None


def _kinds(root: dict[str, Any], schema: object) -> set[Scalar] | None:
    """The scalar types that a value may have beside null; None when it may be something else."""
    found = _resolved(root, schema)
    if "const" in found or "enum" in found:
        return _kinds_of([found["const"]] if "const" in found else found["enum"])
    for key in ("anyOf", "oneOf"):
        if key in found:
            each = [_kinds(root, one) for one in found[key]]
            return None if None in each else set().union(*filter(None, each))
    named = found.get("type", "object")
    kinds = {named} if isinstance(named, str) else set(named)
    known = {kind for kind in SCALARS.values() if kind in kinds}
    return known if known | {"null"} >= kinds else None


def _kinds_of(values: list[Any]) -> set[Scalar] | None:
    if not all(value is None or type(value) in SCALARS for value in values):
        return None
    return {SCALARS[type(value)] for value in values if value is not None}


def _resolved(root: dict[str, Any], schema: object) -> dict[str, Any]:
    """The schema that a reference inside of `root` leads to; {} where there is none."""
    resolver = Registry().resolver_with_root(_resource(root))
    for _ in range(REF_STEPS):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        try:
            schema = resolver.lookup(schema["$ref"]).contents
        except Unresolvable:
            return {}
    return {}


def _dialect(schema: dict[str, Any]) -> type[Validator]:
    named = schema if isinstance(schema.get("$schema", ""), str) else {}
    return jsonschema.validators.validator_for(named, default=jsonschema.Draft202012Validator)


def _resource(schema: dict[str, Any]) -> Resource[Any]:
    named = str(schema.get("$schema", ""))
    return specification_with(named, default=DRAFT202012).create_resource(schema)
