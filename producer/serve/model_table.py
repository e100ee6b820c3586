"""The operator's table of models: which engine the `model` of a request means."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nightshift.common.errors import BadInput
from nightshift.common.public_text import private
from nightshift.common.spec.engines import EngineSpec
from nightshift.common.spec.job import Name
from nightshift.common.spec.parse import parse_yaml
from nightshift.common.system_errors import told
from nightshift.common.validation import first_mistake


class ServedModel(BaseModel):
    """One entry: the engine that answers for a name, and the pool that runs it.

    Prices stand in the engine section, as in a job spec.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    aliases: tuple[str, ...] = Field((), description="Other names for the same engine.")
    pool: Name = Field("default", description="Pool whose workers run it.")
    engine: EngineSpec = Field(description="The engine section of a job spec.")


class ModelTable(BaseModel):
    """`models` by name. A name or an alias stands in it once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[Annotated[str, Field(min_length=1, max_length=200)], ServedModel]

    @model_validator(mode="after")
    def _named_once(self) -> "ModelTable":
        names = [name for name, _ in self._names()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the name {twice[0]!r} stands for two models")
        return self

    def find(self, name: str) -> tuple[str, ServedModel] | None:
        """The model of a name or alias, with its own name."""
        for each, own in self._names():
            if each == name:
                return own, self.models[own]
        return None

    def own_name(self, name: str) -> str:
        """The name of a model for an alias of it; a name that the table lacks is its own."""
        found = self.find(name)
        return name if found is None else found[0]

    def _names(self) -> Iterator[tuple[str, str]]:
        for own, model in self.models.items():
            yield own, own
            for alias in model.aliases:
                yield alias, own


def load(path: Path | None) -> ModelTable:
    """The table in a YAML file; BadInput with one sentence for a file that cannot be used."""
    if path is None:
        raise BadInput(
            "NIGHTSHIFT_SERVE_MODELS is not set: name the file that says which engine a model means"
        )
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        return _placed(ModelTable.model_validate(data), path.absolute().parent)
    except OSError as error:
        raise BadInput(f"{private(path)} cannot be read: {told(error)}") from error
    except ValidationError as error:
        place, why = first_mistake(error)
        raise BadInput(f"{private(path)}: {place + ': ' if place else ''}{why}") from error


def _placed(table: ModelTable, folder: Path) -> ModelTable:
    """The table with models that begin with ./ in its own folder."""
    placed = {
        name: served.model_copy(
            update={"engine": served.engine.model_copy(update={"model": str(folder / model)})}
        )
        for name, served in table.models.items()
        if (model := getattr(served.engine, "model", "")).startswith("./")
    }
    return table.model_copy(update={"models": {**table.models, **placed}})
