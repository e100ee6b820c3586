"""The command that finds engine arguments: tune."""

import json
from typing import Annotated, Any

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import context
from nightshift.producer.cli.flags import Flags, takes_flags
from nightshift.producer.cli.job_spec import job_spec
from nightshift.producer.cli.run import Target


@takes_flags
def tune(
    target: Target,
    *,
    flags: Flags,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of the last trials; the first have fewer.")
    ] = 1152,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=VALUE,VALUE",
            help="Values of an engine argument to try, each JSON or a string; several times for "
            "several arguments. max_num_seqs and max_num_batched_tokens are tried in any case, with "
            "the values that are named here or else with a few from small to large.",
        ),
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Find the engine arguments that run a spec fastest here, and keep them for `args: auto`.

    Random rows of the input run with each combination, the fastest go on with more rows. A trial
    whose engine does not start or runs out of memory is a line in the table.
    """
    settings = context.command_settings()
    spec = job_spec(target, flags)
    from nightshift.producer.tune.halving import TRIED
    from nightshift.producer.tune.tune import as_json as json_of
    from nightshift.producer.tune.tune import show
    from nightshift.producer.tune.tune import tune as run_tune

    tried = {**TRIED, **dict(_values(text) for text in values or ())}
    messages = context.console(stderr=as_json)
    tuned = run_tune(spec, settings, tried, messages, rows=rows)
    if as_json:
        context.print_json(json_of(tuned))
    else:
        show(tuned, messages)


def _values(text: str) -> tuple[str, list[Any]]:
    """A name and its values; BadInput for text of another form."""
    name, equals, given = text.partition("=")
    if not (equals and name and given):
        raise BadInput(f"--try {text!r} is not NAME=VALUE,VALUE")
    return name, [_value(each) for each in given.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
