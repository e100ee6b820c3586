"""Catalogs of Iceberg tables by the names that the operator gave them (NIGHTSHIFT_CATALOGS), and tables in them.

What goes wrong is said in one sentence without a secret. Everything that a table names is opened by our storage.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.settings import Settings
from nightshift.common.text import first_few
from nightshift.producer.tables.table import TableAway

SETTING = "NIGHTSHIFT_CATALOGS"

DATABASE_SECONDS = 2
"""For a connection to the database of a catalog, of which pyiceberg makes two; libpq takes no less."""

PLAIN = frozenset({"type", "uri", "warehouse", "s3.endpoint", "s3.region"})
"""Properties whose values are no secrets, apart from a password in the uri."""

FILE_IO = "nightshift.producer.tables.file_io.StorageIO"

REST = "nightshift.producer.tables.rest.BoundedRestCatalog"

PACKAGES = {
    "pyiceberg": "pip install 'nightshift-fleet[iceberg]'",
    "boto3": "pip install 'pyiceberg[glue]'",
    "thrift": "pip install 'pyiceberg[hive]'",
    "psycopg2": "begin the uri with postgresql+psycopg:",
}
"""How a package comes that a catalog needs; others by their own name."""


def open_catalog(settings: Settings, name: str) -> Any:
    """The catalog of this name, a `pyiceberg.catalog.Catalog`, which the caller may `close()`.

    Its tables open their files within the roots that hold where each table is loaded. Raises BadInput for a name
    that the operator has not given, for a package that is missing, and for a catalog that is out of reach or
    refuses its credentials; a dead address, and one that never answers, take about 5 s.
    """
    properties = settings.catalog(name)
    if properties is None:
        raise TableAway(_unknown(settings, name))
    with answering(name, properties):
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(name, **_completed(properties))
        _hold_files(catalog)
        return catalog


def load_table(catalog: Any, name: str) -> Any:
    """A table of a catalog, a `pyiceberg.table.Table`, by its name with its namespace; None where there is none.

    Raises BadInput for a namespace that is not there, a view, and a table whose metadata cannot be read or lies
    outside the roots.
    """
    with answering(catalog.name, catalog.properties, table=name):
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            _refuse_other(catalog, name)
            return None


@contextmanager
def answering(
    catalog: str, properties: Mapping[str, Any], *, table: str | None = None
) -> Iterator[None]:
    """What a catalog or a table of it answers wrongly, or not at all, is BadInput; our own errors stay, and so
    do the errors that a caller tells apart: a lost commit, a table that is there or is not.
    """
    try:
        yield
    except NightshiftError:
        raise
    except Exception as error:
        if (package := _missing_package(error)) is not None:
            how = PACKAGES.get(package, f"pip install {package}")
            raise TableAway(f"catalog {catalog} needs the package {package}: {how}") from error
        if _is_callers(error):
            raise
        # Not chained: the text of a driver's error may hold a secret, and a traceback would show it.
        raise _told(catalog, properties, table, error) from None


def _hold_files(catalog: Any) -> None:
    """Every file goes through our storage. A table names the class that opens its files in its properties, and
    an answer of a server does, too: neither may take another one.
    """
    from pyiceberg.io import PY_IO_IMPL

    from nightshift.producer.tables.file_io import StorageIO

    def load_file_io(properties: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> StorageIO:
        given = {**catalog.properties, **(properties or {}), PY_IO_IMPL: FILE_IO}
        return StorageIO(given)

    catalog._load_file_io = load_file_io


def _completed(properties: Mapping[str, str]) -> dict[str, str]:
    """The operator's properties with ours: who opens files, and bounds on time."""
    found = {"py-io-impl": FILE_IO, **properties}
    uri = found.get("uri", "")
    kind = found.get("type", "").lower()
    if "py-catalog-impl" not in found and (kind == "rest" or (not kind and uri.startswith("http"))):
        found.pop("type", None)
        found["py-catalog-impl"] = REST
    if uri.startswith("postgresql"):
        steps = urlsplit(uri)
        query = {"connect_timeout": str(DATABASE_SECONDS), **dict(parse_qsl(steps.query))}
        found["uri"] = urlunsplit(steps._replace(query=urlencode(query)))
    return {**found, "py-io-impl": FILE_IO}


def _refuse_other(catalog: Any, name: str) -> None:
    """BadInput for a name that no table can have now: of a view, or in a namespace that is not there."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    namespace = name.rpartition(".")[0]
    try:
        there = catalog.namespace_exists(namespace)
    except NoSuchNamespaceError:
        there = False
    if not there:
        raise BadInput(f"catalog {catalog.name} has no namespace {namespace}: make it first")
    try:
        is_view = catalog.view_exists(name)
    except NotImplementedError:
        is_view = False
    if is_view:
        raise BadInput(
            f"{name} of catalog {catalog.name} is a view, which is no table: name a table"
        )


def _unknown(settings: Settings, name: str) -> str:
    if not settings.catalogs:
        return f"there is no catalog {name}: {SETTING} names no catalog on this machine"
    return f"there is no catalog {name}: {SETTING} names {first_few(sorted(settings.catalogs), 10)}"


def _is_callers(error: Exception) -> bool:
    from pyiceberg import exceptions

    return isinstance(
        error,
        exceptions.CommitFailedException
        | exceptions.CommitStateUnknownException
        | exceptions.NoSuchTableError
        | exceptions.TableAlreadyExistsError
        | exceptions.ValidationException,
    )


def _told(
    catalog: str, properties: Mapping[str, Any], table: str | None, error: Exception
) -> BadInput:
    """What is wrong, told by the type of the error."""
    from pyiceberg import exceptions
    from requests.exceptions import RequestException

    address = _address(str(properties.get("uri", "")))
    where = f"catalog {catalog}" + (f" at {address}" if address else "")
    why = _without_secrets(_innermost(error), properties)
    if isinstance(
        error,
        exceptions.UnauthorizedError
        | exceptions.ForbiddenError
        | exceptions.AuthorizationExpiredError
        | exceptions.OAuthError
        | exceptions.SignError,
    ):
        return TableAway(f"{where} refuses the credentials that {SETTING} gives it")
    module = type(error).__module__
    is_answer = isinstance(error, exceptions.BadRequestError)
    is_away = isinstance(error, RequestException | exceptions.RESTError)
    if (is_away and not is_answer) or module.startswith("sqlalchemy"):
        return TableAway(f"{where} cannot be reached: {why}")
    if table is not None:
        return BadInput(f"the table {table} of catalog {catalog} cannot be read or written: {why}")
    return TableAway(f"{where} cannot be opened by the properties that {SETTING} gives it: {why}")


def _address(uri: str) -> str:
    """The uri without user, password and query."""
    steps = urlsplit(uri)
    host = steps.netloc.rpartition("@")[2]
    return urlunsplit((steps.scheme, host, steps.path, "", "")) if host else uri.partition("?")[0]


def _missing_package(error: BaseException) -> str | None:
    for each in _causes(error):
        if isinstance(each, ModuleNotFoundError) and each.name is not None:
            return each.name.partition(".")[0]
    return None


def _innermost(error: BaseException) -> str:
    """The first line of what the error that caused all others says, in the words of the system where there are
    any.
    """
    last = _causes(error)[-1]
    said = getattr(last, "strerror", None) or str(last).strip() or type(last).__name__
    return str(said).splitlines()[0].rstrip(".")


def _causes(error: BaseException) -> list[BaseException]:
    """An error and those that caused it, the first of them last."""
    found = [error]
    while (inner := getattr(found[-1], "orig", None) or _cause(found[-1])) and inner not in found:
        found.append(inner)
    return found


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    inner = [each for each in (error.__context__, *error.args) if isinstance(each, BaseException)]
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return reason if isinstance(reason, BaseException) else next(iter(inner), None)


def _without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    secrets = [str(value) for key, value in properties.items() if key not in PLAIN]
    password = urlsplit(str(properties.get("uri", ""))).password
    for secret in filter(None, (*secrets, password, str(properties.get("uri", "")))):
        if len(secret) >= 4:
            text = text.replace(secret, "…")
    return text
