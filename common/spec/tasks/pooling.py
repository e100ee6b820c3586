"""Tasks embed, classify and score: text in, numbers out, by a pooling model."""

from typing import Literal

from pydantic import Field

from nightshift.common.spec.tasks.section import TaskSection


class EmbedTask(TaskSection):
    """Text in, a vector out, by an embedding model."""

    has_open_columns = True

    kind: Literal["embed"] = Field(description="Text in, a vector out, by an embedding model.")
    text: str = Field(description="Template of the text.")
    dimensions: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="Number of leading dimensions to keep, for models trained for it (Matryoshka), before they "
        "are normalised. All when absent.",
    )
    normalize: bool | None = Field(
        None, description="Scale to length 1, or not; as the model's own files say when absent."
    )
    dtype: Literal["float32", "float16"] = Field(
        "float32", description="Type of the vectors' numbers in the output."
    )

    @property
    def answers(self) -> tuple[str, ...]:
        """The vector."""
        return ("embedding",)

    @property
    def templates(self) -> list[str]:
        """The text's."""
        return [self.text]


class ClassifyTask(TaskSection):
    """Text in, a label with its probability out, by a sequence classifier."""

    has_open_columns = True

    kind: Literal["classify"] = Field(
        description="Text in, a label with its probability out, by a sequence classifier."
    )
    text: str = Field(description="Template of the text.")
    text_pair: str | None = Field(
        None, description="Template of the second text, for models that judge pairs."
    )

    @property
    def answers(self) -> tuple[str, ...]:
        """The best label, its probability, and those of all labels."""
        return ("label", "probability", "probabilities")

    @property
    def templates(self) -> list[str]:
        """The text's and, where there is one, the second text's."""
        return [self.text] if self.text_pair is None else [self.text, self.text_pair]


class ScoreTask(TaskSection):
    """Two texts in, one number out: a cross-encoder's, or the cosine of two embeddings."""

    kind: Literal["score"] = Field(
        description="Two texts in, one number out: a cross-encoder's, or the cosine of two "
        "embeddings."
    )
    text: str = Field(description="Template of the text, such as the query.")
    text_pair: str = Field(description="Template of the second text, such as the document.")

    @property
    def answers(self) -> tuple[str, ...]:
        """The number."""
        return ("score",)

    @property
    def templates(self) -> list[str]:
        """The two texts'."""
        return [self.text, self.text_pair]
