"""An Iceberg REST catalog on loopback over pyiceberg's own SQL catalog: the routes that its REST client uses."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nightshift.producer.tables.catalogs import FILE_IO

TOKEN = "a-token-of-the-tests"

STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalogServer:
    """Serves the catalog in `folder`, whose tables lie below `warehouse`. `seen` has method and path of each
    request; `answer(method, path)` may give a status in place of an answer, before the request is done.
    """

    def __init__(self, folder: Path, warehouse: str) -> None:
        self.catalog = SqlCatalog(
            "served",
            uri=f"sqlite:///{folder}/rest_catalog.db",
            warehouse=warehouse,
            **{"py-io-impl": FILE_IO},
        )
        self.seen: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], int | None] = lambda _method, _path: None
        self._commits = threading.Lock()
        tables = "/v1/namespaces/{namespace}/tables"
        routes = [
            self._route("/v1/config", GET=self._config),
            self._route("/v1/namespaces", GET=self._namespaces, POST=self._create_namespace),
            self._route("/v1/namespaces/{namespace}", GET=self._namespace),
            self._route(tables, GET=self._tables, POST=self._create),
            self._route(
                f"{tables}/{{table}}", GET=self._load, POST=self._commit, DELETE=self._drop
            ),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), host="127.0.0.1", port=0, log_level="critical", lifespan="off"
        )
        self._server = uvicorn.Server(config)

    @property
    def uri(self) -> str:
        """Its address, once it runs."""
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    @property
    def properties(self) -> dict[str, str]:
        """What an operator says of it in NIGHTSHIFT_CATALOGS."""
        return {"type": "rest", "uri": self.uri, "token": TOKEN}

    @contextmanager
    def running(self) -> Iterator["RestCatalogServer"]:
        """Answers until the end of the block."""
        begun = threading.Event()
        startup = self._server.startup

        async def started(*args: Any, **kwargs: Any) -> None:
            try:
                await startup(*args, **kwargs)
            finally:
                begun.set()

        self._server.startup = started  # type: ignore[method-assign]
        thread = threading.Thread(target=self._server.run, daemon=True)
        thread.start()
        try:
            assert begun.wait(60)
            yield self
        finally:
            self._server.should_exit = True
            thread.join(60)
            self.catalog.close()

    def _route(self, path: str, **methods: Callable[[Request, Any], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            self.seen.append((request.method, request.url.path))
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return _error(401, "NotAuthorizedException", "who are you?")
            if (status := self.answer(request.method, request.url.path)) is not None:
                return _error(status, "ServiceFailure", "as the test wants it")
            method = "GET" if request.method == "HEAD" else request.method
            body = await request.body()
            try:
                with self._commits:
                    found = methods[method](request, body)
            except tuple(STATUS) as error:
                return _error(STATUS[type(error)], type(error).__name__, str(error))
            except Exception as error:
                return _error(500, type(error).__name__, str(error))
            if request.method == "HEAD" or found is None:
                return Response(status_code=204)
            return JSONResponse(found)

        return Route(path, endpoint, methods=[*methods, *(["HEAD"] if "GET" in methods else [])])

    def _config(self, _request: Request, _body: bytes) -> Any:
        return {"defaults": {}, "overrides": {}}

    def _namespaces(self, _request: Request, _body: bytes) -> Any:
        return {"namespaces": self.catalog.list_namespaces()}

    def _create_namespace(self, request: Request, body: bytes) -> Any:
        asked = json.loads(body)
        self.catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties") or {})
        return {"namespace": asked["namespace"], "properties": {}}

    def _namespace(self, request: Request, _body: bytes) -> Any:
        name = _namespace(request)
        return {
            "namespace": name,
            "properties": self.catalog.load_namespace_properties(name),
        }

    def _tables(self, request: Request, _body: bytes) -> Any:
        found = self.catalog.list_tables(_namespace(request))
        return {"identifiers": [{"namespace": each[:-1], "name": each[-1]} for each in found]}

    def _create(self, request: Request, body: bytes) -> Any:
        absent = {"location": None, "partition-spec": None, "write-order": None}
        asked = CreateTableRequest.model_validate({**absent, **json.loads(body)})
        identifier = (*_namespace(request), asked.name)
        if not self.catalog.namespace_exists(_namespace(request)):
            raise NoSuchNamespaceError(f"no namespace {_namespace(request)}")
        given: dict[str, Any] = {
            "schema": asked.table_schema,
            "location": asked.location,
            "properties": asked.properties,
        }
        if asked.partition_spec is not None:
            given["partition_spec"] = asked.partition_spec
        if asked.stage_create:
            if self.catalog.table_exists(identifier):
                raise TableAlreadyExistsError(f"{identifier} is there")
            staged = self.catalog._create_staged_table(identifier, **given)
            return _table(staged, None)
        made = self.catalog.create_table(identifier, **given)
        return _table(made, made.metadata_location)

    def _load(self, request: Request, _body: bytes) -> Any:
        found = self.catalog.load_table(_identifier(request))
        return _table(found, found.metadata_location)

    def _commit(self, request: Request, body: bytes) -> Any:
        asked = CommitTableRequest.model_validate_json(body)
        identifier = _identifier(request)
        table: Any = SimpleNamespace(name=lambda: identifier)
        done = self.catalog.commit_table(table, asked.requirements, asked.updates)
        return done.model_dump(mode="json", by_alias=True, exclude_none=True)

    def _drop(self, request: Request, _body: bytes) -> None:
        self.catalog.drop_table(_identifier(request))


def _namespace(request: Request) -> tuple[str, ...]:
    return tuple(str(request.path_params["namespace"]).split("\x1f"))


def _identifier(request: Request) -> tuple[str, ...]:
    return (*_namespace(request), str(request.path_params["table"]))


def _table(table: Any, location: str | None) -> dict[str, Any]:
    metadata = table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    found = {"metadata": metadata, "config": {}}
    return found if location is None else {**found, "metadata-location": location}


def _error(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": kind, "code": status}}, status_code=status
    )
