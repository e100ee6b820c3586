"""A spec with absolute paths, so that it means the same in every folder."""

from pathlib import Path

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.public_text import private
from nightshift.common.spec import InputSpec, JobSpec, TransformersEngineSpec, VllmEngineSpec
from nightshift.common.spec.table_uris import DELTA


def resolved(spec: JobSpec) -> JobSpec:
    """The spec with local paths made absolute, so that it means the same in every folder."""
    engine = spec.engine
    if isinstance(engine, VllmEngineSpec | TransformersEngineSpec):
        folder = Path(engine.model)
        if engine.model.startswith(("./", "../")) and not folder.is_dir():
            raise BadInput(f"engine.model {private(engine.model)} is not a folder on this machine")
        if folder.is_dir():
            engine = engine.model_copy(update={"model": str(folder.resolve())})
    output: dict[str, object] = {"uri": storage.resolve(spec.output.uri).rstrip("/")}
    table = spec.output.table
    if table is not None and table.uri is not None:
        root = storage.resolve(table.uri).rstrip("/")
        output["table"] = table.model_copy(update={"uri": root})
    return spec.model_copy(
        update={
            "input": resolved_input(spec.input),
            "output": spec.output.model_copy(update=output),
            "engine": engine,
        }
    )


def resolved_input(spec_input: InputSpec) -> InputSpec:
    """The input with local paths made absolute. The columns of a table are those that the table says it has."""
    if (table := spec_input.table) is None:
        return spec_input.model_copy(
            update={"uri": [storage.resolve(uri) for uri in spec_input.uris]}
        )
    if table.startswith(DELTA):
        table = f"{DELTA}{storage.resolve(table.removeprefix(DELTA))}"
    facts = {"uri": [table], "format": "parquet", "partitioning": "none"}
    return spec_input.model_copy(update=facts)
