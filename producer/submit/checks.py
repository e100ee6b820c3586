"""What is refused at submit: output directories, columns and types that would fail later."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import output_schema, part_names
from nightshift.common.formats.arrow_types import arrow_type
from nightshift.common.formats.csv.records import other_delimiter
from nightshift.common.formats.parquet.column_types import written_schema
from nightshift.common.formats.table_types import TITLES, NoTableType
from nightshift.common.public_text import marked, private
from nightshift.common.spec import GenerateTask, JobSpec, finish_by
from nightshift.common.spec.tasks.template_arguments import column_of
from nightshift.common.storage import FileInfo
from nightshift.common.templates.sandbox import template_columns
from nightshift.common.text import did_you_mean, first_few
from nightshift.producer.submit.planning import schema_merge
from nightshift.producer.submit.planning.planner import Plan

SINGLE_BRACES = re.compile(r"(?<!\{)\{\s*([^{}]*[^{}\s])\s*\}(?!\})")
"""What stands in single braces, as in `str.format` of Python."""

SHOWN_CHARACTERS = 60
"""Characters of a template that a message shows."""


def check_output(spec: JobSpec, infos: Sequence[FileInfo], *, adopting: bool = False) -> None:
    """BadInput for an output directory that is in use, or that cannot lie beside this input.

    With `adopting` it may hold parts, which this job removes.
    """
    output = spec.output.uri
    names = storage.list_names(output)
    for name in storage.OWN_FOLDERS.intersection(names):
        storage.list_names(f"{output}/{name}")  # refuses a link
    if any(map(part_names.is_result, names)) and not adopting:
        raise BadInput(
            f"{private(output)} holds the parts of a job that this ledger does not know: name another "
            "output directory, or empty it"
        )
    refuse_inside_output(spec, infos)


def refuse_inside_output(spec: JobSpec, infos: Sequence[FileInfo]) -> None:
    """BadInput for input inside the output directory, and for an output whose files would be read as input."""
    output = spec.output.uri
    for info in infos:
        own = info.uri.startswith(f"{output}/{part_names.JUDGED}/")
        if info.uri.startswith(f"{output}/") and not own:
            raise BadInput(
                f"the input {private(info.uri)} lies inside the output directory {private(output)}"
            )
    refuse_read_as_input(spec, "the output directory", output, f"part-0.{spec.output.format}")


def moment_of(finish_by_text: str) -> datetime:
    """The moment of limits.finish_by by the clock of this machine; BadInput when it has passed."""
    try:
        return finish_by.moment(finish_by_text, datetime.now().astimezone())
    except ValueError as error:
        raise BadInput(f"limits.finish_by: {marked(error)}") from error


def files_beside(output_uri: str) -> tuple[str, ...]:
    """Names in an output directory that no job made: readers of the directory meet them too."""
    own = {*storage.OWN_FOLDERS, part_names.OWNER}
    return tuple(
        name
        for name in storage.list_names(output_uri)
        if name not in own and not part_names.is_result(name)
    )


def refuse_foreign_rows(output_uri: str, suffix: str, beside: Sequence[str]) -> None:
    """Raise BadInput if the output directory, at any depth, has a file with the suffix of the parts that no job wrote:
    readers of the directory would take its rows for answers. They ignore names that begin with _ or a dot.
    """
    foreign = [name for name in beside if name.lower().endswith(f".{suffix}")]
    for name in beside:
        if name in foreign or name.startswith(("_", ".")):
            continue
        with suppress(BadInput):  # nothing is found
            below = storage.expand([f"{output_uri}/{name}/**/*.{suffix}"])
            foreign += [file.uri.removeprefix(f"{output_uri}/") for file in below]
    if foreign:
        raise BadInput(
            f"{private(output_uri)} holds {first_few(foreign, 3)}, which no job has written: readers of the directory would "
            "take its rows for answers; move the file, or name another output directory"
        )


def refuse_read_as_input(spec: JobSpec, what: str, folder: str, name: str) -> None:
    """BadInput where a file of that name in a folder of ours would be read as input."""
    places = [f"{folder}/{name}"]
    while len(places[-1]) > len(folder):
        places.append(places[-1].rpartition("/")[0])
    for uri in spec.input.uris:
        plain = uri.rstrip("/")
        # A folder that a pattern matches is read to its bottom.
        if any(storage.is_pattern_over(uri, place) for place in places):
            raise BadInput(
                f"{what} {private(folder)} lies under the input {private(uri)}: its files would be read as input"
            )
        if folder == plain or folder.startswith(f"{plain}/"):
            raise BadInput(
                f"{what} {private(folder)} lies inside the input {private(plain)}: its files would be read as input"
            )


def check_columns(spec: JobSpec, schema: pa.Schema) -> None:
    """Every column that the spec names exists in the data; BadInput says which does not."""
    named = [("input.columns", name) for name in spec.input.columns or ()]
    named += [("output.columns", name) for name in spec.output.columns]
    if spec.input.id is not None:
        named.insert(0, ("input.id", spec.input.id))
    if isinstance(spec.task, GenerateTask):
        named += _of_generate(spec.task)
    for template in spec.task.templates:
        place = f"the template task.{spec.task.place_of(template)}"
        for name in sorted(template_columns(template)):
            named.append((f"{place}, {_line_with(template, name)!r},", name))
    named += [("the task", name) for name in sorted(spec.task.columns)]
    for place, name in named:
        if name not in schema.names:
            raise BadInput(
                f"{place} names the column {name!r}{did_you_mean(name, schema.names)}, which the input does not have: it has "
                f"{first_few(schema.names, 20)}{_delimiter_hint(spec, schema)}"
            )


def _line_with(template: str, name: str) -> str:
    """Return the first line of a template that contains a column's name, shortened around the name."""
    line = next((line for line in template.splitlines() if name in line), template)
    at = max(0, line.find(name) - SHOWN_CHARACTERS // 2)
    shown = line[at : at + SHOWN_CHARACTERS]
    return f"{'…' if at else ''}{shown}{'…' if at + len(shown) < len(line) else ''}"


def check_braces(spec: JobSpec, schema: pa.Schema) -> None:
    """BadInput for templates that name no column, and have one of the input in single braces: every row would get the
    same prompt.
    """
    if spec.task.columns:
        return
    for template in spec.task.templates:
        for name in SINGLE_BRACES.findall(template):
            if name in schema.names:
                raise BadInput(
                    f"the template has {{{name}}} in single braces, so every row gets the same prompt: write {{{{ {name} }}}}"
                )


def _delimiter_hint(spec: JobSpec, schema: pa.Schema) -> str:
    """What to write for CSV whose header was read as the name of one column."""
    delimiter = other_delimiter(schema.names)
    if delimiter is None or spec.input.format not in (None, "csv"):
        return ""
    return f"; where that is CSV, write input.delimiter: {json.dumps(delimiter)} in a spec"


def _of_generate(task: GenerateTask) -> list[tuple[str, str]]:
    """The place in the spec, and the column, of each that is named outside of a template."""
    arguments = task.chat_template_kwargs.items()
    named = [
        ("task.sampling.max_tokens_column", task.sampling.max_tokens_column),
        ("task.messages_column", task.messages_column),
        *((f"task.chat_template_kwargs.{key}", column_of(value)) for key, value in arguments),
        *(
            (f"task.sampling_columns.{key}", each)
            for key, each in task.sampling_columns.named.items()
        ),
    ]
    return [(place, column) for place, column in named if column is not None]


def check_types(spec: JobSpec, schema: pa.Schema) -> None:
    """A column of a row's own sampling holds numbers, and one of chats holds messages or JSON; BadInput names
    one that holds something else.
    """
    if not isinstance(spec.task, GenerateTask):
        return
    for key, name in spec.task.sampling_columns.named.items():
        kind = schema.field(name).type
        numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
        if not any(holds(kind) for holds in numbers):
            raise BadInput(
                f"task.sampling_columns.{key} names the column {name!r}, which is {kind}: it must hold numbers"
            )
    if (chats := spec.task.messages_column) is None:
        return
    kind = schema.field(chats).type
    texts = (pa.string(), pa.large_string())
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if kind not in texts and not (is_list and pa.types.is_struct(kind.value_type)):
        raise BadInput(
            f"task.messages_column names the column {chats!r}, which is {kind}: it must hold lists of messages, "
            "structs with role and content, or the same as JSON"
        )


def check_images(spec: JobSpec, schema: pa.Schema) -> None:
    """A column of images holds bytes or URIs; BadInput names one that holds something else."""
    if not isinstance(spec.task, GenerateTask):
        return
    allowed = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
    for name in sorted(spec.task.image_columns):
        if (kind := schema.field(name).type) not in allowed:
            raise BadInput(
                f"task.messages has images of the column {name!r}, which is {kind}: it must hold "
                "the bytes of image files, or URIs as text"
            )


def check_jsonl(spec: JobSpec, inputs: pa.Schema) -> None:
    """BadInput for a column whose values JSON lines would not give back as they were."""
    if spec.output.format != "jsonl":
        return
    for name in spec.passed_columns:
        kind = inputs.field(name).type
        if not _survives_json(kind):
            raise BadInput(
                f"the column {name!r} is {kind}, which JSON lines cannot bring back: write "
                "output.format parquet, or leave the column out of the output"
            )


def _survives_json(kind: pa.DataType) -> bool:
    lost = (
        pa.types.is_duration,
        pa.types.is_time,
        pa.types.is_fixed_size_list,
        pa.types.is_fixed_size_binary,
        pa.types.is_map,
        pa.types.is_uint64,
    )
    if any(is_lost(kind) for is_lost in lost) or isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_struct(kind):
        return all(_survives_json(each.type) for each in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _survives_json(kind.value_type)
    return True


def check_table_types(spec: JobSpec, inputs: pa.Schema) -> None:
    """BadInput for a column that the table of the job has no type for; `inputs` with the texts of
    `with_late_texts`.
    """
    if spec.output.table is None:
        return
    in_files = written_schema(inputs)
    for name in spec.passed_columns:
        if pa.types.is_null(in_files.field(name).type):
            raise BadInput(
                f"the column {name!r} has no value in any file, and so no type, which every column of "
                f"{TITLES[spec.output.table.format]} needs: leave the column out of the output"
            )
    try:
        output_schema.bare_schema(spec, inputs)
    except NoTableType as error:
        raise BadInput(
            f"{marked(error)}: leave the column out of the output, or write the input with another type"
        ) from error
    try:
        output_schema.output_schema(spec, inputs)
    except NoTableType as error:
        raise BadInput(f"{marked(error)}: name another type in output.schema") from error
    except ValueError:
        pass  # no type at all: `fixed_output_schema` says so


def check_schema(spec: JobSpec, schema: pa.Schema) -> None:
    """BadInput for columns that are not there, or hold what the task or the output cannot take."""
    check_declared_types(spec)
    check_columns(spec, schema)
    check_braces(spec, schema)
    check_images(spec, schema)
    check_types(spec, schema)
    check_jsonl(spec, schema)


def with_late_texts(spec: JobSpec, plan: Plan) -> pa.Schema:
    """The columns of a plan; those of JSON lines that may hold other values later are text."""
    formats = {file.format for file in plan.files}
    chats = spec.task.messages_column if isinstance(spec.task, GenerateTask) else None
    return schema_merge.with_late_texts(plan.schema, spec.passed_columns, formats, chats)


def check_declared_types(spec: JobSpec) -> None:
    """BadInput for a type of output.schema that does not exist; no look at the input is needed."""
    for name, alias in (spec.output.output_schema or {}).items():
        try:
            arrow_type(alias)
        except ValueError as error:
            raise BadInput(f"output.schema: the column {name!r}: {marked(error)}") from error


def fixed_output_schema(spec: JobSpec, inputs: pa.Schema) -> bytes | None:
    """The columns of the parts, serialized; None where the first answers fix them."""
    try:
        schema = output_schema.output_schema(spec, inputs)
    except ValueError as error:
        raise BadInput(f"output.schema: {marked(error)}") from error
    return None if schema is None else output_schema.serialize(schema)
