"""Writes the JSON schema of a custom object from the models of a cloudcoil wheel: see README.md."""

import ast
import json
import sys
import types
import typing
import zipfile
from typing import Any

import pydantic


class Strict(pydantic.BaseModel):
    """Stands for cloudcoil's bases: what is not named is refused."""

    model_config = pydantic.ConfigDict(extra="forbid")


def model(source: str, name: str) -> type[pydantic.BaseModel]:
    """The class with the fields of its source and of all that they name, and nothing else."""
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    needed, found = {name}, [name]
    while found:
        node = classes[found.pop()]
        node.body = [line for line in node.body if is_field(line)] or [ast.Pass()]
        named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        found += (named & classes.keys()) - needed
        needed |= named & classes.keys()
    fields = "\n".join(ast.unparse(node) for node in classes.values() if node.name in needed)
    module = types.ModuleType("models")
    sys.modules["models"] = module
    vars(module).update(vars(typing))
    vars(module).update(
        BaseModel=Strict,
        Resource=Strict,
        ObjectMeta=dict[str, Any],
        Field=pydantic.Field,
        RootModel=pydantic.RootModel,
        AwareDatetime=pydantic.AwareDatetime,
        __name__="models",
    )
    exec(f"from __future__ import annotations\n{fields}", vars(module))
    made: type[pydantic.BaseModel] = vars(module)[name]
    made.model_rebuild(_types_namespace=vars(module))
    return made


def is_field(line: ast.stmt) -> bool:
    if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
        return False
    return line.target.id not in ("status", "__cloudcoil_api__")


def plain(part: Any, *, names: bool = False) -> Any:
    """Without what does not validate, and without null: the API server takes it for nothing."""
    if isinstance(part, list):
        return [plain(one) for one in part]
    if not isinstance(part, dict):
        return part
    choices = [one for one in part.get("anyOf", []) if one != {"type": "null"}]
    if not names and len(choices) == 1:
        return plain(choices[0])
    return {
        key: plain(value, names=not names and key in ("properties", "$defs"))
        for key, value in part.items()
        if names or key not in ("title", "description", "default")
    }


def main() -> None:
    wheel, module, name = sys.argv[1:]
    with zipfile.ZipFile(wheel) as packed:
        made = model(packed.read(module).decode(), name)
    schema = plain(made.model_json_schema(by_alias=True))
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["required"] = sorted({*schema["required"], "apiVersion", "kind", "metadata"})
    print(json.dumps(schema, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
