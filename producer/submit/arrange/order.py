"""The columns by which rows are sorted: those that a request shows, in the order in which it shows them."""

from collections.abc import Iterator

import pyarrow as pa

from nightshift.common.spec import FunctionTask, GenerateTask, ImagePart, JobSpec, RequestsTask
from nightshift.common.spec.tasks import template_arguments
from nightshift.common.templates.sandbox import columns_in_order


def sort_columns(spec: JobSpec, schema: pa.Schema) -> list[str]:
    """The columns, the one that a request begins with first; none where requests show none.

    Rows that agree in the first of them have requests with the same beginning, at least up to the
    place where the second is shown. For a function, the rows are sorted by its columns, in the order
    of `columns` or of the schema, without the id.
    """
    task = spec.task
    if isinstance(task, RequestsTask):
        return ["body"]
    if isinstance(task, FunctionTask):
        names = spec.read_columns or schema.names
        return [name for name in names if name != spec.input.id]
    shown = _shown(task) if isinstance(task, GenerateTask) else _named(task.templates)
    return list(dict.fromkeys(shown))


def _shown(task: GenerateTask) -> Iterator[str]:
    # A template mostly shows its own arguments before the messages; sampling is in no prompt.
    yield from sorted(template_arguments.columns(task.chat_template_kwargs))
    if task.messages_column is not None:
        yield task.messages_column
    if task.messages is None:
        yield from _named(task.templates)
    for message in task.messages or ():
        for part in message.parts:
            yield from [part.column] if isinstance(part, ImagePart) else _named([part.text])
    yield from task.sampling_columns.named.values()
    if task.sampling.max_tokens_column is not None:
        yield task.sampling.max_tokens_column


def _named(templates: list[str]) -> Iterator[str]:
    for template in templates:
        yield from columns_in_order(template)
