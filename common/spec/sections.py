"""The sections of a spec that say which rows go in, where answers go, and within which bounds."""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from nightshift.common.spec import finish_by
from nightshift.common.spec.section import STORED, Absent, Section
from nightshift.common.spec.table_uris import DELTA, ICEBERG, iceberg_name, names_table
from nightshift.common.spec.tables import TableSpec
from nightshift.common.where.condition import columns
from nightshift.common.where.parse import parse

BATCH_BYTES = 32 * 2**20
"""Default of batch.bytes: a batch of documents or images stays small in a child's memory."""

PAUSE = r"^[1-9][0-9]{0,4}[smh]$"


class InputSpec(Section):
    """Which rows go in."""

    uri: str | list[str] = Field(
        description="A file, a directory, a glob or a list of them; local path, s3:// or gs://. Or one table: "
        "delta:ROOT or iceberg:CATALOG.NAMESPACE.TABLE."
    )
    format: Literal["parquet", "jsonl", "csv", "openai"] | None = Field(
        None,
        description="Format of every file; inferred from the suffix when absent. openai is an "
        "OpenAI batch file, which goes with task.kind requests: either implies the other.",
    )
    delimiter: Absent[str] = Field(
        None,
        min_length=1,
        max_length=1,
        description="Character between the fields of CSV; absent: a tab in .tsv, else a comma.",
    )
    partitioning: Absent[Literal["hive", "none"]] = Field(
        None,
        description="hive: folders called key=value become columns; none: they do not. Absent: hive "
        "if every file lies in folders of the same keys.",
    )
    version: Absent[int] = Field(
        None,
        ge=0,
        description="Version of a Delta table, or snapshot of an Iceberg table, that is read; absent: the newest "
        "at submit.",
    )
    id: str | None = Field(
        None,
        description="Column that names a row; always in the output, under its own name. "
        "Without it `row_index` alone tells the rows apart.",
    )
    unique_id: bool = Field(
        False,
        description="Read the ids at submit, and refuse the input if an id stands in two rows. Without it "
        "`verify` counts them. Not part of the job's identity.",
        exclude_if=lambda value: not value,
    )
    columns: list[str] | None = Field(
        None, description="Columns that templates and functions see; all when absent."
    )
    where: Absent[str] = Field(
        None,
        description="Take only the rows that match this condition in SQL, such as `lang = 'de' AND stars >= 3`: "
        "columns, constants, comparisons, AND, OR, NOT, IN, LIKE, IS NULL; see below.",
    )
    limit: int | None = Field(
        None,
        ge=1,
        description="Take only the first rows of the dataset; with where, the first that match.",
    )
    watch: Absent[str] = Field(
        None,
        pattern=PAUSE,
        description="Pause between two looks for new files, such as 30s, 5m or 1h: a reaper plans "
        "them as further rows, and the job stays open. Not part of the job's identity.",
    )

    @field_validator("uri")
    @classmethod
    def _some_uri(cls, value: str | list[str]) -> str | list[str]:
        uris = [value] if isinstance(value, str) else value
        if not uris or not all(uri.strip() for uri in uris):
            raise ValueError("name at least one file, directory or glob")
        return value

    @field_validator("delimiter")
    @classmethod
    def _some_delimiter(cls, value: str | None) -> str | None:
        if value is not None and (not value.isascii() or value in '"\r\n\0'):
            raise ValueError("must be one ASCII character, except a quote or a line end")
        return value

    @field_validator("where")
    @classmethod
    def _some_condition(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.context != STORED:
            parse(value)
        return value

    @model_validator(mode="after")
    def _where_fits(self) -> Self:
        if self.where is not None and self.format == "openai":
            raise ValueError("an OpenAI batch file runs whole: leave where out")
        return self

    @model_validator(mode="after")
    def _table_fits(self) -> Self:
        tables = list(filter(names_table, self.uris))
        if not tables:
            if self.version is not None:
                raise ValueError("version is for a table, and the uri names none")
            return self
        if len(self.uris) > 1:
            raise ValueError(
                f"{tables[0]} is a table, which is an input by itself: name nothing beside it"
            )
        if self.format not in (None, "parquet"):
            raise ValueError(f"{tables[0]} is a table, which has no input.format: leave it out")
        if self.partitioning == "hive" or self.delimiter is not None:
            raise ValueError("partitioning and delimiter are for files, and the uri names a table")
        if tables[0].startswith(ICEBERG):
            iceberg_name(tables[0])
        elif tables[0] == DELTA:
            raise ValueError("a Delta table is named as delta:ROOT")
        return self

    @model_validator(mode="after")
    def _watch_fits(self) -> Self:
        if self.watch is not None and self.limit is not None:
            raise ValueError("limit takes the first rows and watch all that come: give one of them")
        if self.watch is not None and self.format == "openai":
            raise ValueError(
                "an OpenAI batch file is complete when it is submitted: leave watch out"
            )
        return self

    @model_validator(mode="after")
    def _unique_id_fits(self) -> Self:
        if self.unique_id and self.id is None:
            raise ValueError("unique_id needs an id: name the column that must differ")
        return self

    @property
    def where_columns(self) -> list[str]:
        """The columns that the condition reads."""
        return [] if self.where is None else columns(parse(self.where))

    @property
    def watch_seconds(self) -> int | None:
        """Seconds between two looks for new files; None where no reaper looks."""
        if self.watch is None:
            return None
        return int(self.watch[:-1]) * {"s": 1, "m": 60, "h": 3600}[self.watch[-1]]

    @property
    def uris(self) -> list[str]:
        """The uri as a list, whichever way it was written."""
        return [self.uri] if isinstance(self.uri, str) else list(self.uri)

    @property
    def table(self) -> str | None:
        """The table that is the input; None where files are."""
        return next(filter(names_table, self.uris), None)

    @property
    def places(self) -> list[str]:
        """Where the input lies: its uris, or the root of a Delta table. An Iceberg table lies where its catalog
        says.
        """
        table = self.table
        if table is None:
            return self.uris
        return [table.removeprefix(DELTA)] if table.startswith(DELTA) else []


class OutputSpec(Section):
    """Where the parts go and what they carry."""

    uri: str = Field(min_length=1, description="Output directory; local path, s3:// or gs://.")
    format: Literal["parquet", "jsonl"] = Field(
        "parquet",
        description="Format of the parts: Parquet (zstd, from 16 KiB on), or plain JSON lines.",
    )
    columns: list[str] = Field(
        default_factory=list, description="Input columns passed through beside the id."
    )
    output_schema: dict[str, str] | None = Field(
        None,
        alias="schema",
        description="Column name to Arrow type of what a function returns: string, int64, double, "
        "bool, timestamp[us], list<float>, list<float>[384], struct<a: int64, b: string>, …; else "
        "the first answers decide.",
    )

    table: Absent[TableSpec] = Field(
        None,
        description="Delta or Iceberg table that the parts become part of, see [tables.md](tables.md).",
    )

    @field_validator("uri")
    @classmethod
    def _some_uri(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("name an output directory")
        return value

    @model_validator(mode="after")
    def _table_fits(self) -> Self:
        if self.table is not None and self.format != "parquet":
            raise ValueError(
                "tables are made of Parquet files: leave output.format out beside output.table"
            )
        return self


class BatchSpec(Section):
    """The unit of leasing, retry and output."""

    rows: int = Field(256, ge=1, le=1_000_000, description="Rows a batch, at most.")
    bytes: int = Field(
        BATCH_BYTES,
        ge=1,
        description="Bytes of input a batch: of lines, at most; of the Parquet columns that the job "
        "reads, decoded, by the mean row of each row group. A larger row is a batch by itself.",
        # Workers of a release before this field read the specs of most jobs.
        exclude_if=lambda value: value == BATCH_BYTES,
    )
    arrange: Literal["auto", "prefix", "none"] = Field(
        "auto",
        description="prefix sorts the rows by the beginnings of their requests: rows with the same beginning "
        "run side by side, and an engine's prefix cache keeps the beginning. A copy of the input below the "
        "output has the rows in this order. auto does so where a sample says that it pays, none never.",
        exclude_if=lambda value: value == "auto",
    )


class RetrySpec(Section):
    """How often and how long a batch is tried."""

    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="Retryable failures before a batch is dead; losses of a worker do not count.",
    )
    row_timeout_seconds: float = Field(
        600, gt=0, le=86_400, description="Longest time one row may take in the engine, seconds."
    )


class LimitsSpec(Section):
    """What a job may take and when it stops itself."""

    max_parallel: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Batches of this job that are queued or leased at once.",
    )
    max_failed_fraction: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of failed rows that pauses the job, after 200 rows; of an arranged job "
        "after a tenth of its rows, if that is more.",
    )
    budget: Absent[float] = Field(
        None,
        gt=0,
        description="Money, in the currency of the engine's prices, that the job may spend: it "
        "pauses before it would pass it.",
    )
    finish_by: Absent[str] = Field(
        None,
        description="When the job should be done: 06:00 (the next), 2026-12-24 (the end of that day), "
        "a timestamp, or a duration from submit such as 8h or 90m. A job that would be late gets "
        "slots before others of its priority.",
    )

    @field_validator("finish_by", mode="before")
    @classmethod
    def _some_moment(cls, value: object) -> object:
        if isinstance(value, int | float):
            raise ValueError(f"{value} is a number: put the time in quotes, such as '18:30'")
        if isinstance(value, str):
            finish_by.check(value)
        return value
