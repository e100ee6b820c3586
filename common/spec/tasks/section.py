"""What every task has in common: its kind, its templates, its columns of the output."""

from typing import Any, ClassVar, Self

from pydantic import Field, ValidationInfo, model_validator

from nightshift.common.spec.section import STORED, Absent, Section
from nightshift.common.templates.sandbox import compiled, refuse_large, template_columns


class TaskSection(Section):
    """What every task has beside its own fields."""

    has_open_columns: ClassVar[bool] = False
    """Whether the first answers decide what the columns of the output are."""

    kind: str
    dedupe: Absent[bool] = Field(
        None,
        description="Whether rows with equal requests run once and share the answer. Absent: where no "
        "chance is in the answer, which is at temperature 0 and for models that write no text, and never "
        "for functions. true for a function says that rows with equal values, the id aside, have equal "
        "answers.",
    )

    @model_validator(mode="after")
    def _templates_compile(self, info: ValidationInfo) -> Self:
        # A stored job is read as it is, even if templates have lost a construct since its submit.
        if info.context == STORED:
            return self
        refuse_large(self.templates)
        for template in self.templates:
            try:
                compiled(template)
            except ValueError as error:
                raise ValueError(f"{self.place_of(template)}: {error}") from error
        return self

    def place_of(self, template: str) -> str:
        """Return the path of a template within the section, such as `messages.0.content`."""
        return _place(self.model_dump(exclude_unset=True), template)

    @property
    def answers(self) -> tuple[str, ...]:
        """Columns of the output that are the task's own, which no column of the input can have."""
        return ()

    @property
    def shares(self) -> bool:
        """Whether rows with equal requests may share an answer."""
        return self.dedupe is not False

    @property
    def samples(self) -> int:
        """Sequences that an engine draws for each row."""
        return 1

    @property
    def runner(self) -> str:
        """What an engine is loaded for; engines of another runner are other engines."""
        return str(self.kind)

    @property
    def templates(self) -> list[str]:
        """Every template of the task, in order."""
        return []

    @property
    def columns(self) -> frozenset[str]:
        """Input columns that the task names."""
        return frozenset().union(*(template_columns(template) for template in self.templates))


def _place(value: Any, template: str) -> str:
    """The keys and places of lists that lead to a template, with dots between them."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in members:
        if each == template:
            return str(key)
        if isinstance(each, dict | list | tuple) and (below := _place(each, template)):
            return f"{key}.{below}"
    return ""
