"""Chat messages: templates of text, and columns that hold images."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from nightshift.common.spec.section import Section


class TextPart(Section):
    """Text among the images of a message."""

    type: Literal["text"] = Field(description="A part of the text.")
    text: str = Field(description="Template over the row's columns.")


class ImagePart(Section):
    """An image of a message."""

    type: Literal["image"] = Field(description="An image, for models that take them.")
    column: str = Field(
        min_length=1,
        description="Column that holds it: the bytes of an image file, or a URI as text.",
    )


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _kind_of_content(value: object) -> str:
    return "parts" if isinstance(value, list) else "template"


class Message(Section):
    """One chat message; `content` is a Jinja template over the row's columns, or a list of parts."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: Annotated[
        Annotated[str, Tag("template")] | Annotated[list[ContentPart], Tag("parts")],
        Discriminator(_kind_of_content),
    ] = Field(description="Template over the row's columns, or a list of parts: text and images.")

    @field_validator("content")
    @classmethod
    def _some_part(cls, value: str | list[ContentPart]) -> str | list[ContentPart]:
        if value == []:
            raise ValueError("names no part")
        return value

    @property
    def parts(self) -> Sequence[ContentPart]:
        """The content as parts, whichever way it was written."""
        if isinstance(self.content, str):
            return [TextPart(type="text", text=self.content)]
        return self.content

    @property
    def templates(self) -> list[str]:
        """The templates of its text, in order."""
        return [part.text for part in self.parts if isinstance(part, TextPart)]
