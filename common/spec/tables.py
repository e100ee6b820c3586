"""The table of a lake that a job's parts become part of: which one, and how."""

from typing import Literal, Self

from pydantic import Field, model_validator

from nightshift.common.spec.section import Absent, Section

CATALOG_NAME = r"^[A-Za-z0-9_-]+$"
TABLE_NAME = r"^[^.\s]+(\.[^.\s]+)+$"


class TableSpec(Section):
    """A Delta or Iceberg table that gets the rows of the job in one commit, once all of them are done."""

    format: Literal["delta", "iceberg"] = Field(description="Format of the table.")
    uri: Absent[str] = Field(
        None,
        min_length=1,
        description="Root of a Delta table, local path or s3://; `output.uri` lies below it. The table is made "
        "where there is none.",
    )
    catalog: Absent[str] = Field(
        None,
        pattern=CATALOG_NAME,
        description="Catalog of an Iceberg table, by its name in NIGHTSHIFT_CATALOGS.",
    )
    name: Absent[str] = Field(
        None,
        pattern=TABLE_NAME,
        description="Name of an Iceberg table in its catalog: namespace.table.",
    )
    mode: Literal["append", "overwrite", "merge"] = Field(
        "append",
        description="append adds the rows; overwrite puts them in the place of all rows of the table; merge puts "
        "them in the place of rows with the same id (`input.id`), and adds the others; a row with an error replaces "
        "none.",
    )
    keep_days: int = Field(
        7,
        ge=0,
        le=36_500,
        description="How long a part that a retry has replaced stays for readers of older versions, in days. Not "
        "part of the job's identity.",
    )

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if self.format == "delta":
            if self.uri is None or self.catalog is not None or self.name is not None:
                raise ValueError("a delta table is named by its uri alone")
        elif self.uri is not None or self.catalog is None or self.name is None:
            raise ValueError("an iceberg table is named by its catalog and its name")
        return self

    @property
    def title(self) -> str:
        """How messages name the table."""
        return self.uri if self.uri is not None else f"{self.catalog}.{self.name}"
