"""`/v1/models`: the names that the operator's table has."""

from starlette.routing import Route

from nightshift.producer.serve.calls import Call, route
from nightshift.producer.serve.errors import not_found
from nightshift.producer.serve.v1.schemas import ModelList, ModelObject


def list_models(call: Call) -> ModelList:
    """Every name and alias."""
    table = call.context.models()
    names = [name for own, model in table.models.items() for name in (own, *model.aliases)]
    return ModelList(data=[_model(name) for name in names])


def retrieve_model(call: Call) -> ModelObject:
    """One name; a name may hold slashes."""
    name = call.path["model"]
    if call.context.models().find(name) is None:
        raise not_found("model", name)
    return _model(name)


def _model(name: str) -> ModelObject:
    return ModelObject(id=name, created=0, owned_by="nightshift")


ROUTES: list[Route] = [
    route("GET", "/v1/models", list_models, "viewer"),
    route("GET", "/v1/models/{model:path}", retrieve_model, "viewer"),
]
