"""The JSON Schema of job specs, for editors: draft 2020-12, made of the models of the spec.

The schema accepts every spec that `parse_spec` accepts, its short forms and quoted numbers included. Rules that
hold between fields are the spec's alone.
"""

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from nightshift.common.spec.engines import CALLABLE
from nightshift.common.spec.job import JobSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIERS = {"job": "urn:nightshift:job-spec", "judge": "urn:nightshift:judge-spec"}

_NUMBER = r"[0-9]|^\s*[-+]?([iI][nN][fF]|[nN][aA][nN])"
_WORD = r"^\s*([01]|[tTfFyYnN]|[oO][nN]|[oO][fF][fF]|[yY][eE][sS]|[nN][oO]|[tT][rR][uU][eE]|[fF][aA][lL][sS][eE])\s*$"
"""Quoted numbers and booleans, which the spec takes for what they say."""

_ANY_LETTER = r"^[A-Za-z_][^\s:]*:[A-Za-z_][^\s:]*$"
"""CALLABLE for editors, to whom \\w is a letter of ASCII."""

_BATCH_FILE = {
    "properties": {"input": {"properties": {"format": {"const": "openai"}}, "required": ["format"]}}
}


def editor_schema(kind: str = "job") -> dict[str, Any]:
    """The schema of a job's spec, or of a judge's, which has no input: the judged job is its input."""
    found = JobSpec.model_json_schema(by_alias=True, schema_generator=_Lenient)
    found["required"] = [name for name in found["required"] if name != "task"]
    # An OpenAI batch file says by itself what its task is.
    found["if"], found["else"] = _BATCH_FILE, {"required": ["task"]}
    found["$defs"]["GenerateTask"]["properties"]["thinking"]["anyOf"].append(
        # YAML 1.1 reads the bare words on and off so.
        {"type": "boolean"}
    )
    if kind == "judge":
        del found["properties"]["input"]
        found["required"].remove("input")
    head = {"$schema": DIALECT, "$id": IDENTIFIERS[kind], "title": f"Nightshift {kind} spec"}
    return {**head, **{key: each for key, each in found.items() if key != "title"}}


def written_schema(kind: str = "job") -> str:
    """The schema as text."""
    return json.dumps(editor_schema(kind), indent=1) + "\n"


class _Lenient(GenerateJsonSchema):
    """Says what pydantic takes in place of a number or a boolean; leaves titles of fields out."""

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        """One of several sections, without the word of OpenAPI that tells which."""
        found = super().tagged_union_schema(schema)
        found.pop("discriminator", None)
        return found

    def field_title_should_be_set(self, schema: Any) -> bool:
        """A title would repeat the name of the field."""
        return False

    def int_schema(self, schema: Any) -> dict[str, Any]:
        """A whole number, or one in quotes."""
        return _or_text(super().int_schema(schema), "integer", _NUMBER)

    def float_schema(self, schema: Any) -> dict[str, Any]:
        """A number, or one in quotes."""
        return _or_text(super().float_schema(schema), "number", _NUMBER)

    def bool_schema(self, schema: Any) -> dict[str, Any]:
        """A boolean, its number, or its word in quotes."""
        return _or_text(super().bool_schema(schema), "integer", _WORD) | {
            "minimum": 0,
            "maximum": 1,
        }

    def str_schema(self, schema: Any) -> dict[str, Any]:
        """A text; its pattern as editors read patterns."""
        found = super().str_schema(schema)
        return found | {"pattern": _ANY_LETTER} if found.get("pattern") == CALLABLE else found


def _or_text(schema: dict[str, Any], number: str, pattern: str) -> dict[str, Any]:
    return schema | {"type": [number, "string", "boolean"], "pattern": pattern}
