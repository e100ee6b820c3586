"""The page of a new job: a form or YAML, a look at its first rows and prompts, an estimate, a pilot."""

import io
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.formats import reading
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.spec.parse import parse_yaml
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
from nightshift.producer.serve.errors import ApiError, answer, message
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


@dataclass(frozen=True, slots=True)
class First:
    """One of the first rows: what the job reads of it, and its prompts; or why it cannot run."""

    index: int
    values: Mapping[str, Any]
    prompts: list[str]
    error: str | None = None


def assembled(form: Form, table: ModelTable | None) -> dict[str, Any]:
    """The sections of a spec that the fields give; those left empty are left out. A model's name is looked
    up in the operator's table first. Pure.
    """
    sections: dict[str, Any] = {}
    for field, place in PLACES.items():
        if value := form.get(field, ""):
            _put(sections, place, _number(value) if field in NUMBERS else value)
    choices = [word.strip() for word in form.get("choices", "").split(",") if word.strip()]
    if choices:
        _put(sections, "task.output.choice", choices)
    if "name" not in sections and form.get("input"):
        sections["name"] = job_name(form["input"])
    if "callable" in sections.get("engine", {}):
        sections["engine"]["backend"] = "function"
        return {**sections, "task": {"kind": "function", **sections.get("task", {})}}
    model = form.get("model", "")
    known = table.find(model) if table is not None and model else None
    if known is not None:
        engine = known[1].engine.model_dump(mode="json", by_alias=True, exclude_unset=True)
        sections = {"pool": known[1].pool, **sections, "engine": engine}
    elif model:
        sections["engine"] = {"backend": "vllm", "model": model}
    return {**sections, "task": {"kind": "generate", **sections.get("task", {})}}


def show_new(visit: Visit) -> Response:
    """The empty page: a form, or YAML with `as=yaml`."""
    if not visit.looker.acts:
        raise ApiError(403, "this key looks, and submits nothing", code="forbidden")
    form = {name: visit.query(name) or "" for name in ("as", "input", "name")}
    return _page(visit, form)


def try_new(visit: Visit) -> Response:
    """Shows what a spec would do, or submits it; the same spec leads to the same job. What is wrong with
    it is said beside it.
    """
    form = {name: values[0].rstrip() for name, values in visit.form.items()}
    do = form.get("do")
    if do not in ("preview", "yaml", "estimate", "pilot", "submit"):
        raise ApiError(400, "do is not one of preview, estimate, pilot and submit", param="do")
    try:
        if do == "yaml":
            text = yaml.safe_dump(assembled(form, _models(visit)), sort_keys=False)
            return _page(visit, {"as": "yaml", "spec": text})
        spec = _spec(visit, form)
        if do == "preview":
            with _planning(visit):
                names, rows = _first_rows(visit, spec)
            return _page(visit, form, columns=names, rows=rows)
        if do == "estimate":
            with _planning(visit):
                made = _estimate(visit, spec)
            return _page(visit, form, estimate=made)
        pilot = _pilot_rows(form) if do == "pilot" else None
        looker, settings = visit.looker, visit.context.settings
        done = submitting.submit_for(
            visit.ledger,
            settings,
            looker.caller,
            spec,
            looker.scope,
            pilot,
            ending=visit.context.slow.ending,
        )
    except (ApiError, NightshiftError) as error:
        told = answer(error)
        return _page(visit, form, told.status_code, why=message(told))
    return seen_at(f"/jobs/{done.job_id}")


def _spec(visit: Visit, form: Form) -> JobSpec:
    if form.get("as") == "yaml":
        return parse_spec(
            map_leaves(parse_yaml(form.get("spec", ""), "the spec"), kept), "the spec"
        )
    return parse_spec(map_leaves(assembled(form, _models(visit)), kept), "the form")


def _first_rows(visit: Visit, spec: JobSpec) -> tuple[list[str], list[First]]:
    """Names of the input's columns, and its first rows with their prompts."""
    from nightshift.common.formats.values import to_rows
    from nightshift.producer.estimate.row_sample import sample_rows
    from nightshift.producer.submit.submit import survey, within_roots

    few = spec.input.model_copy(update={"limit": min(spec.input.limit or FIRST_ROWS, FIRST_ROWS)})
    settings, spec = _bounded(visit, spec.model_copy(update={"input": few}))
    with copies_folder() as copies, within_roots(settings, copies):
        spec, plan = survey(spec, settings, copies=copies)
        found = sample_rows(plan, spec, FIRST_ROWS, 0)
        values = [dict(row) for row in islice(to_rows(found.table), FIRST_ROWS)]
    rows = [*_prompted(spec, zip(found.row_index, values, strict=True))]
    rows += [First(index, {}, [], bad.message) for index, bad in found.bad.items()]
    return list(plan.schema.names), sorted(rows, key=lambda row: row.index)


def _prompted(spec: JobSpec, rows: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[First]:
    templates = [compiled(template) for template in spec.task.templates]
    bounds, until = reading.current(), time.thread_time() + budget.RENDER_SECONDS
    for index, values in rows:
        bounds.check()
        if time.thread_time() > until:
            yield First(
                index, values, [], "the prompts of the rows before took too long to show these"
            )
            continue
        try:
            yield First(index, values, list(rendered_all(templates, values)))
        except Exception as error:  # a template over a row's values may raise anything
            yield First(index, values, [], f"the row cannot be rendered: {error}")


def _estimate(visit: Visit, spec: JobSpec) -> str:
    """What `nightshift estimate` prints."""
    from rich.console import Console

    from nightshift.producer.estimate import estimate_report
    from nightshift.producer.estimate.estimate import estimate

    settings, spec = _bounded(visit, spec)
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


def _bounded(visit: Visit, spec: JobSpec) -> tuple[Settings, JobSpec]:
    return submitting.bounded(visit.ledger, visit.context.settings, visit.looker.caller, spec)


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


def _put(sections: dict[str, Any], place: str, value: Any) -> None:
    *path, key = place.split(".")
    for name in path:
        sections = sections.setdefault(name, {})
    sections[key] = value


def _page(
    visit: Visit, form: Form, status: int = 200, *, why: str | None = None, **found: Any
) -> Response:
    try:
        table = _models(visit)
    except ApiError:
        table = None
    shown = visit.page(
        "new_job.html",
        title="New job",
        form=form,
        as_yaml=form.get("as") == "yaml",
        why=why,
        models=sorted(table.models) if table is not None else [],
        pilot_rows=PILOT_ROWS,
        takes_files=visit.context.settings.serve_store is not None,
        **({"columns": None, "rows": None, "estimate": None} | found),
    )
    shown.status_code = status
    return shown


async def upload(request: Request, visit: Visit) -> Response:
    """Stores a file as its bytes come, and leads to the form of a job that reads it."""
    call, settings = visit.call(visit.looker.caller.tenant), visit.context.settings

    def place(file_id: str, name: str) -> str:
        return store_layout.input(settings, call.caller.tenant, file_id, name)

    def whole(_form: FormWithFile) -> tuple[str, int]:
        return "user_data", files.lifetime(call, None)

    stored = await files.received(request, call, place, whole)
    name = job_name(stored.filename)
    return seen_at(f"/jobs/new?input={render.quoted(stored.uri)}&name={render.quoted(name)}")


ROUTES: list[Route] = [
    page("/jobs/new", show_new),
    action("/jobs/new", try_new, slow=plans),
    incoming("/jobs/new/file", upload),
]
