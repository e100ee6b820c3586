"""The page of a new job: rows first, then what runs over them; first rows and prompts, an estimate, a pilot. Or YAML.

Nobody names an output directory: the server chooses one (`submitting.with_output`). A form carries a drawn text, so
that the same form sent twice is one job.
"""

import io
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import yaml
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.formats import reading
from nightshift.common.spec import InputSpec, JobSpec, parse_spec
from nightshift.common.spec.parse import parse_yaml
from nightshift.common.spec.section import put
from nightshift.common.templates import budget
from nightshift.common.templates.sandbox import compiled, rendered_all
from nightshift.common.text import map_leaves
from nightshift.producer.external_sort.spill import copies_folder
from nightshift.producer.serve import store_layout, submitting
from nightshift.producer.serve.calls import kept, plans
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    incoming,
    page,
    seen_at,
)
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.model_table import ModelTable
from nightshift.producer.serve.v1 import files
from nightshift.producer.serve.v1.multipart import FormWithFile
from nightshift.producer.submit.names import job_name

FIRST_ROWS = 5
"""Rows that are shown before a job runs."""

PILOT_ROWS = 200

MOST_PILOT_ROWS = 10_000
"""Rows of a pilot are read by the server at once."""

PLACES = {
    "name": "name",
    "input": "input.uri",
    "id": "input.id",
    "prompt": "task.prompt",
    "max_tokens": "task.sampling.max_tokens",
    "callable": "engine.callable",
    "output": "output.uri",
    "pool": "pool",
    "priority": "priority",
    "finish_by": "limits.finish_by",
    "budget": "limits.budget",
}
"""Fields of the form whose text goes into the spec as it is, by their place there."""

NUMBERS = ("max_tokens", "priority", "budget")

Form = Mapping[str, str]

DOES = ("look", "preview", "yaml", "estimate", "pilot", "submit")
"""What the buttons of the form ask for."""

OF_JOB = ("id", "unique_id", "watch", "columns")
"""Fields of an input that say what a job makes of its rows."""

CHOSEN = "-"
"""Stands for an output directory until the server has chosen one."""


@dataclass(frozen=True, slots=True)
class Look:
    """The first rows of an input: names and types of its columns, values of each row by column, and by number
    why a row cannot be read. `names_rows` is the column that seems to name rows, "" for none.
    """

    columns: list[tuple[str, str]]
    rows: list[tuple[int, list[Any]]]
    bad: dict[int, str]
    names_rows: str = ""


@dataclass(frozen=True, slots=True)
class First:
    """One of the first rows and its prompts; or why it cannot run."""

    index: int
    prompts: list[str]
    error: str | None = None


def assembled(form: Form, table: ModelTable | None) -> dict[str, Any]:
    """The sections of a spec that the fields give; those left empty are left out. A model's name, from the list or
    another one, is looked up in the operator's table first. Pure.
    """
    sections: dict[str, Any] = {}
    for field, place in PLACES.items():
        if value := form.get(field, ""):
            put(sections, place, _number(value) if field in NUMBERS else value)
    choices = [word.strip() for word in form.get("choices", "").split(",") if word.strip()]
    if choices:
        put(sections, "task.output.choice", choices)
    if "name" not in sections and form.get("input"):
        sections["name"] = job_name(form["input"])
    if "callable" in sections.get("engine", {}):
        sections["engine"]["backend"] = "function"
        return {**sections, "task": {"kind": "function", **sections.get("task", {})}}
    model = form.get("model") or form.get("other_model", "")
    known = table.find(model) if table is not None and model else None
    if known is not None:
        engine = known[1].engine.model_dump(mode="json", by_alias=True, exclude_unset=True)
        sections = {"pool": known[1].pool, **sections, "engine": engine}
    elif model:
        sections["engine"] = {"backend": "vllm", "model": model}
    return {**sections, "task": {"kind": "generate", **sections.get("task", {})}}


def naming_column(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The column named id, if its values are there and differ in these rows; "" for none. Pure."""
    for place, name in enumerate(columns):
        values = [row[place] for row in rows]
        if name.lower() == "id" and None not in values and len(set(map(str, values))) == len(rows):
            return name if rows else ""
    return ""


def show_new(visit: Visit) -> Response:
    """Asks for rows; or for YAML with `as=yaml`."""
    _refuse_viewer(visit)
    if visit.query("input"):
        return seen_at(f"/jobs/new/rows?{visit.request.url.query}")
    return _page(visit, {name: visit.query(name) or "" for name in ("as", "name")})


def show_first_rows(visit: Visit) -> Response:
    """The first rows of an input, and the form of a job that reads it."""
    _refuse_viewer(visit)
    form = {name: visit.query(name) or "" for name in ("input", "name")}
    if not form["input"]:
        return seen_at("/jobs/new")
    try:
        look = _look(visit, form)
    except (ApiError, NightshiftError) as error:
        status, why = visit.told(error)
        return _page(visit, form, status, why=why)
    return _page(visit, form, look=look)


def try_new(visit: Visit) -> Response:
    """Shows what a spec would do, or submits it; the same form leads to the same job. What is wrong with
    it is said beside it.
    """
    form = {name: values[0].rstrip() for name, values in visit.form.items()}
    do = form.get("do")
    if (column := form.pop("names_rows", "")) and do is None:
        do, form["id"] = "look", column
    if do not in DOES:
        raise ApiError(400, f"do is not one of {', '.join(DOES)}", param="do")
    try:
        if do == "yaml":
            text = yaml.safe_dump(assembled(form, _models(visit)), sort_keys=False)
            return _page(visit, {"as": "yaml", "spec": text, "drawn": form.get("drawn", "")})
        if do in ("look", "preview", "estimate"):
            return _page(visit, form, **_tried(visit, form, do))
        pilot = _pilot_rows(form) if do == "pilot" else None
        looker, settings = visit.looker, visit.context.settings
        done = submitting.submit_for(
            visit.ledger,
            settings,
            looker.caller,
            _spec(visit, form),
            looker.scope,
            pilot,
            ending=visit.context.slow.ending,
        )
    except (ApiError, NightshiftError) as error:
        status, why = visit.told(error)
        look = None
        with suppress(ApiError, NightshiftError):
            look = _look(visit, form) if status < 429 else None
        return _page(visit, form, status, why=why, look=look)
    return seen_at(f"/jobs/{done.job_id}")


def _refuse_viewer(visit: Visit) -> None:
    if not visit.looker.acts:
        raise ApiError(403, "this key looks, and submits nothing", code="forbidden")


def _tried(visit: Visit, form: Form, do: str) -> dict[str, Any]:
    """What the page shows beside the form: first rows, and prompts or an estimate."""
    found: dict[str, Any] = {"look": _look(visit, form)}
    if do == "look":
        return found
    spec = _spec(visit, form)
    with _planning(visit):
        if do == "estimate":
            return found | {"estimate": _estimate(visit, spec)}
        return found | {"prompts": _first_prompts(visit, spec)}


def _sections(visit: Visit, form: Form) -> tuple[Any, str]:
    """What a form says of a spec, and what errors call the form."""
    if form.get("as") == "yaml":
        return map_leaves(parse_yaml(form.get("spec", ""), "the spec"), kept), "the spec"
    return map_leaves(assembled(form, _models(visit)), kept), "the form"


def _spec(visit: Visit, form: Form) -> JobSpec:
    sections, called = _sections(visit, form)
    output = sections.get("output", {}) if isinstance(sections, dict) else None
    if not isinstance(output, dict) or output.get("uri"):
        return parse_spec(sections, called)
    spec = parse_spec({**sections, "output": {**output, "uri": CHOSEN}}, called)
    settings, caller = visit.context.settings, visit.looker.caller
    drawn = form.get("drawn") or secrets.token_hex()
    return submitting.with_output(visit.ledger, settings, caller, spec, drawn)


def _look(visit: Visit, form: Form) -> Look:
    """The first rows of the input, whatever runs over them."""
    sections, called = _sections(visit, form)
    if not isinstance(sections, dict):
        parse_spec(sections, called)  # which says what it must be
    given = sections.get("input")
    if isinstance(given, dict):
        given = {name: each for name, each in given.items() if name not in OF_JOB}
    # All columns, as a function reads them; none is called.
    spec = parse_spec(
        {
            "name": "look",
            "input": given,
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "look:rows"},
            "output": {"uri": CHOSEN},
        },
        "the form",
    )
    with _planning(visit):
        names, found = _first_rows(visit, spec, input_only=True)
    values = [[row.get(name) for name, _ in names] for _, row in found.rows]
    rows = [(index, each) for (index, _), each in zip(found.rows, values, strict=True)]
    return Look(names, rows, found.bad, naming_column([name for name, _ in names], values))


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows as they were read, by number, and why others cannot be read."""

    spec: JobSpec
    rows: list[tuple[int, dict[str, Any]]]
    bad: dict[int, str]


def _first_rows(
    visit: Visit, spec: JobSpec, *, input_only: bool = False
) -> tuple[list[tuple[str, str]], _Read]:
    """Names and types of the input's columns, and its first rows."""
    from nightshift.common.formats.values import to_rows
    from nightshift.producer.estimate.row_sample import sample_rows
    from nightshift.producer.submit.submit import survey, within_roots

    few = spec.input.model_copy(update={"limit": min(spec.input.limit or FIRST_ROWS, FIRST_ROWS)})
    spec = spec.model_copy(update={"input": few})
    settings, spec = submitting.bounded(
        visit.ledger, visit.context.settings, visit.looker.caller, spec, input_only=input_only
    )
    with copies_folder() as copies, within_roots(settings, copies):
        spec, plan = survey(spec, settings, copies=copies)
        found = sample_rows(plan, spec, FIRST_ROWS, 0)
        values = [dict(row) for row in islice(to_rows(found.table), FIRST_ROWS)]
    columns = [(field.name, str(field.type)) for field in plan.schema]
    bad = {index: why.message for index, why in found.bad.items()}
    return columns, _Read(spec, list(zip(found.row_index, values, strict=True)), bad)


def _first_prompts(visit: Visit, spec: JobSpec) -> list[First]:
    """The first rows with their prompts; those of a function have none."""
    _, found = _first_rows(visit, spec)
    rows = [*_prompted(found.spec, iter(found.rows))]
    rows += [First(index, [], why) for index, why in found.bad.items()]
    return sorted(rows, key=lambda row: row.index)


def _prompted(spec: JobSpec, rows: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[First]:
    templates = [compiled(template) for template in spec.task.templates]
    bounds, until = reading.current(), time.thread_time() + budget.RENDER_SECONDS
    for index, values in rows:
        bounds.check()
        if time.thread_time() > until:
            yield First(index, [], "the prompts of the rows before took too long to show these")
            continue
        try:
            yield First(index, list(rendered_all(templates, values)))
        except Exception as error:  # a template over a row's values may raise anything
            yield First(index, [], f"the row cannot be rendered: {error}")


def _estimate(visit: Visit, spec: JobSpec) -> str:
    """What `nightshift estimate` prints."""
    from rich.console import Console

    from nightshift.producer.estimate import estimate_report
    from nightshift.producer.estimate.estimate import estimate

    settings, spec = submitting.bounded(
        visit.ledger, visit.context.settings, visit.looker.caller, spec
    )
    printed = io.StringIO()
    # A tokenizer may come with code of its own, which runs for one person on this machine at most.
    own = visit.request.app.state.session is not None
    made = estimate(spec, settings, visit.ledger, tokenizes=own)
    Console(file=printed, width=80, color_system=None).print(estimate_report.render(made))
    return printed.getvalue().rstrip()


def _planning(visit: Visit) -> AbstractContextManager[None]:
    """Bounds of a plan that makes no job."""
    context, caller = visit.context, visit.looker.caller
    ending = context.slow.ending
    return submitting.planning(context.ledger, context.settings, caller, ending, of_job=False)


def _models(visit: Visit) -> ModelTable | None:
    """The operator's table of models; None where there is none."""
    if visit.context.settings.serve_models is None:
        return None
    return visit.context.models()


def _pilot_rows(form: Form) -> int:
    rows = _number(form.get("pilot_rows") or str(PILOT_ROWS))
    if not isinstance(rows, int) or not 1 <= rows <= MOST_PILOT_ROWS:
        raise BadInput(f"the rows of a pilot are a whole number from 1 to {MOST_PILOT_ROWS:,}")
    return rows


def _number(text: str) -> int | float | str:
    """A number as one; what is none is refused with the spec."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _page(
    visit: Visit, form: Form, status: int = 200, *, why: str | None = None, **found: Any
) -> Response:
    try:
        table = _models(visit)
    except ApiError:
        table = None
    models = sorted(table.models) if table is not None else []
    tenant = submitting.bounds(visit.ledger, visit.looker.caller)
    shown = visit.page(
        "new_job.html",
        title="New job",
        form={"name": "", **form, "drawn": form.get("drawn") or secrets.token_hex(16)},
        as_yaml=form.get("as") == "yaml",
        why=why,
        models=models,
        runs_functions=tenant is None or tenant.callables,
        **_results(visit, form),
        pilot_rows=PILOT_ROWS,
        takes_files=visit.context.settings.serve_store is not None,
        **({"look": None, "prompts": None, "estimate": None} | found),
    )
    shown.status_code = status
    return shown


def _results(visit: Visit, form: Form) -> dict[str, Any]:
    """The `folder` in which the server would put the results, None where it has none for them; and whether that
    lies `in_store`.
    """
    settings, caller = visit.context.settings, visit.looker.caller
    folder = None
    with suppress(ApiError, NightshiftError, ValidationError):
        places = InputSpec(uri=form["input"]).places if form.get("input") else []
        folder = submitting.output_folder(visit.ledger, settings, caller, places)
    store = settings.serve_store
    in_store = store is not None and folder == store_layout.outputs(store, caller.tenant)
    return {"folder": folder, "in_store": in_store}


async def upload(request: Request, visit: Visit) -> Response:
    """Stores a file as its bytes come, and leads to the form of a job that reads it."""
    call, settings = visit.call(visit.looker.caller.tenant), visit.context.settings

    def place(file_id: str, name: str) -> str:
        return store_layout.input(settings, call.caller.tenant, file_id, name)

    def whole(_form: FormWithFile) -> tuple[str, int]:
        return "user_data", files.lifetime(call, None)

    stored = await files.received(request, call, place, whole)
    name = job_name(stored.filename)
    return seen_at(f"/jobs/new/rows?input={render.quoted(stored.uri)}&name={render.quoted(name)}")


ROUTES: list[Route] = [
    page("/jobs/new", show_new),
    page("/jobs/new/rows", show_first_rows, slow=plans),
    action("/jobs/new", try_new, slow=plans),
    incoming("/jobs/new/file", upload),
]
