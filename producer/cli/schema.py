"""Commands for editors: schema."""

from typing import Annotated

import typer


def schema(
    *,
    judge: Annotated[
        bool, typer.Option("--judge", help="Of a judge's spec, which has no input.")
    ] = False,
) -> None:
    """Print the JSON Schema of job specs, with which editors complete and check them.

    An editor with the YAML language server takes the schema from the first line of a spec:
    # yaml-language-server: $schema=job.schema.json
    """
    from nightshift.common.spec.editor_schema import written_schema

    typer.echo(written_schema("judge" if judge else "job"), nl=False)
