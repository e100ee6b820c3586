"""The OpenAPI document of the server, made of its routes: nothing stands in it that is not served.

A handler's docstring is the summary of its operation, and the model that it returns is the shape of its answer.
"""

import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute, Route

from nightshift.common.provenance import code_version
from nightshift.producer.serve.calls import Operation
from nightshift.producer.serve.v1.schemas import ErrorBody

PLACE = "#/components/schemas/{model}"

_VARIABLE = re.compile(r"\{(\w+)(:\w+)?\}")


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of these routes."""
    operations = [
        (route, operation)
        for route in routes
        if isinstance(route, Route) and (operation := getattr(route, "operation", None)) is not None
    ]
    shapes = {ErrorBody, *(each.answers for _, each in operations if each.answers is not None)}
    named = sorted(shapes, key=lambda shape: shape.__name__)
    _, schemas = models_json_schema(
        [(shape, "serialization") for shape in named], ref_template=PLACE
    )
    paths: dict[str, Any] = {}
    for route, operation in operations:
        place = _VARIABLE.sub(r"{\1}", route.path)
        paths.setdefault(place, {})[operation.method.lower()] = _operation(route, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Nightshift", "version": code_version()},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(route: Route, operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name, _ in _VARIABLE.findall(route.path)
        ]
        + [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
            for name in operation.query
        ],
        "responses": {
            **{str(status): _answer(operation) for status in operation.statuses},
            "default": {"description": "Refused or failed.", "content": _json(ErrorBody.__name__)},
        },
    }
    if operation.takes is not None:
        found["requestBody"] = {"required": True, "content": operation.takes}
    return found


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.binary:
        schema = {"type": "string", "format": "binary"}
        return {
            "description": "The bytes.",
            "content": {"application/octet-stream": {"schema": schema}},
        }
    if operation.answers is None:
        content = {"application/json": {"schema": {"type": "object"}}}
        return {"description": "Done.", "content": content}
    return {"description": "Done.", "content": _json(operation.answers.__name__)}


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": PLACE.format(model=model)}}}
