"""What the specs of a tenant may do, and how much at once. Pure."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from nightshift.common.spec import (
    FunctionEngineSpec,
    GenerateTask,
    JobSpec,
    OpenaiEngineSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.spec.engines import EngineSpec
from nightshift.common.storage import resolve
from nightshift.producer.serve import store_layout
from nightshift.producer.serve.ledger.tenants import Tenant


def bound(tenant: Tenant, spec: JobSpec) -> JobSpec:
    """The spec whose images, where a URI names them, lie in the folders of its tenant."""
    task = spec.task
    if not isinstance(task, GenerateTask) or not task.image_columns or task.image_roots:
        return spec
    held = task.model_copy(update={"image_roots": list(tenant.roots)})
    return spec.model_copy(update={"task": held})


def refusal(tenant: Tenant, spec: JobSpec, store: str | None) -> str | None:
    """Why a tenant may not run a spec, in one sentence; None where it may. The `store` of all tenants and the
    folders around it are closed to a tenant, except for inputs that it has uploaded and the directories of
    results below its own folder of outputs.
    """
    return (
        place_refusal(tenant, spec)
        or _engine_refusal(tenant, spec.engine)
        or _folder_refusal(tenant, spec, store)
    )


def _engine_refusal(tenant: Tenant, engine: EngineSpec) -> str | None:
    match engine:
        case FunctionEngineSpec() if not tenant.callables:
            return "this tenant is not allowed to run functions: engine.backend function"
        case OpenaiEngineSpec() if not tenant.remotes:
            return "this tenant is not allowed to name a server: engine.base_url"
        case VllmEngineSpec() | TransformersEngineSpec() if _is_relative(engine.model):
            model = engine.model[:200]
            return f"engine.model {model} is a relative path: name the folder by its whole path"
        case _:
            return None


def _folder_refusal(tenant: Tenant, spec: JobSpec, store: str | None) -> str | None:
    images = spec.task.image_roots if isinstance(spec.task, GenerateTask) else ()
    of_output = [] if _is_own_output(tenant, spec.output.uri, store) else [spec.output.uri]
    return input_refusal(tenant, spec.input.places, store) or _outside(
        tenant, [*of_output, *images], store
    )


def input_refusal(tenant: Tenant, places: Sequence[str], store: str | None) -> str | None:
    """Why a tenant may not read an input that lies there, in one sentence; None where it may."""
    return _outside(
        tenant,
        [
            uri
            for uri in places
            if not _is_upload(tenant, uri, store) and not _is_result(tenant, uri, store)
        ],
        store,
    )


def _outside(tenant: Tenant, uris: Sequence[str], store: str | None) -> str | None:
    for uri in uris:
        if not _is_below(uri, tenant.roots) or (store is not None and _meets(uri, store)):
            return f"{uri[:200]} lies outside the folders of this tenant: {_said(tenant.roots)}"
    return None


def place_refusal(tenant: Tenant, spec: JobSpec) -> str | None:
    """As `refusal`, of a spec whose engine and folders the operator has chosen: that of a batch."""
    return priority_refusal(tenant, spec.priority) or pool_refusal(tenant, spec.pool)


def change_refusal(tenant: Tenant, changes: Mapping[str, tuple[object, object]]) -> str | None:
    """Why a tenant may not change fields of its job, given by old and new value. What does not change may be
    beyond its limits: an operator has put it there.
    """
    priority, pool = (changes.get(name, (None, None))[1] for name in ("priority", "pool"))
    refused = None if priority is None else priority_refusal(tenant, int(str(priority)))
    return refused or (None if pool is None else pool_refusal(tenant, str(pool)))


def priority_refusal(tenant: Tenant, priority: int) -> str | None:
    """Why a tenant may not have the priority, in one sentence; None where it may."""
    if priority <= tenant.max_priority:
        return None
    return f"priority {priority} is above {tenant.max_priority}, the highest of this tenant"


def pool_refusal(tenant: Tenant, pool: str) -> str | None:
    """Why a tenant may not use the pool, in one sentence; None where it may."""
    if tenant.pools is None or pool in tenant.pools:
        return None
    return f"the pool {pool} is not one of this tenant's: {', '.join(tenant.pools) or 'none'}"


def quota_refusal(tenant: Tenant, reserved: tuple[int, int], asked: tuple[int, int]) -> str | None:
    """Why the rows and tokens that are `asked` for, beside those `reserved`, are more than the tenant may have
    open at once; None where they are not.
    """
    kinds = (("rows", tenant.max_rows), ("tokens", tenant.max_tokens))
    for (what, most), has, wants in zip(kinds, reserved, asked, strict=True):
        if most is not None and has + wants > most:
            return (
                f"{wants:,} {what} are asked for, {has:,} are open already, and this tenant may have "
                f"{most:,} at once"
            )
    return None


def stored_refusal(tenant: Tenant, stored: tuple[int, int], asked: tuple[int, int]) -> str | None:
    """Why the files and bytes that are `asked` for, beside those `stored`, are more than the tenant may have
    stored; None where they are not.
    """
    kinds = (("files", tenant.max_files), ("bytes", tenant.max_bytes))
    for (what, most), has, wants in zip(kinds, stored, asked, strict=True):
        if most is not None and has + wants > most:
            return (
                f"this tenant has {has:,} {what} stored and may have {most:,}: delete files, or jobs with "
                "their results here, or wait until some expire"
            )
    return None


def _is_upload(tenant: Tenant, uri: str, store: str | None) -> bool:
    """Whether this is one file that the tenant has uploaded as an input, and no pattern of files."""
    if store is None:
        return False
    folder, _, name = resolve(uri).rpartition("/")
    return folder == store_layout.inputs(store, tenant.name) and not _is_pattern(name)


def _is_own_output(tenant: Tenant, uri: str, store: str | None) -> bool:
    """Whether this is an output directory in the tenant's own folder of the store."""
    if store is None:
        return False
    folder, _, name = resolve(uri).rpartition("/")
    return folder == store_layout.outputs(store, tenant.name) and not _is_pattern(name)


def _is_result(tenant: Tenant, uri: str, store: str | None) -> bool:
    """Whether this lies in one output directory of the tenant in the store, or matches files there."""
    if store is None:
        return False
    own = f"{store_layout.outputs(store, tenant.name)}/"
    place = resolve(uri)
    return place.startswith(own) and not _is_pattern(place.removeprefix(own).split("/")[0])


def _is_pattern(name: str) -> bool:
    return bool(set(name) & set("*?[{"))


def _is_relative(model: str) -> bool:
    """Whether a model is a folder below that in which the server runs, or a home on its machine."""
    return model in (".", "..") or model.startswith(("./", "../", "~"))


def _is_below(uri: str, roots: tuple[str, ...]) -> bool:
    """Whether an address lies below one of the roots; a relative path never does."""
    if "://" not in uri and not uri.startswith("/"):
        return False
    place = resolve(uri)
    bare = [resolve(root).rstrip("/") for root in roots]
    return any(place == root or place.startswith(f"{root}/") for root in bare)


def _meets(uri: str, store: str) -> bool:
    """Whether a place, or what a pattern matches, lies in the store or around it."""
    ours, theirs = (resolve(each).rstrip("/").split("/") for each in (uri, store))
    for asked, held in zip(ours, theirs, strict=False):
        if "**" in asked:
            return True
        if not fnmatchcase(held, asked):
            return False
    return True


def _said(roots: tuple[str, ...]) -> str:
    return ", ".join(roots) or "it has none"
