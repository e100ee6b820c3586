"""The command that finds engine arguments: tune."""

import json
from collections.abc import Sequence
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
        int | None,
        typer.Option(
            min=1,
            help="Rows of the last trials; the first have fewer. Without it 1,152, or more where the "
            "largest max_num_seqs needs them.",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=VALUE,VALUE",
            help="Values of an engine argument to try: JSON, or words between commas; once for each "
            "argument. max_num_seqs and max_num_batched_tokens are tried in any case, with the values that "
            "are named here or else with a few of their own.",
        ),
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Find the engine arguments that run a spec fastest here; kept for `args: auto`.

    Random rows of the input run with each combination, the fastest go on with more rows. A trial
    whose engine does not start or runs out of memory is a line in the table. Only arguments that cannot change
    answers are tried.
    """
    settings = context.command_settings()
    spec = job_spec(target, flags)
    from nightshift.producer.tune.table import as_json as json_of
    from nightshift.producer.tune.table import show
    from nightshift.producer.tune.tune import tune as run_tune

    named = tried_values(values or ())
    messages = context.console(stderr=as_json)
    tuned = run_tune(spec, settings, named, messages, rows=rows)
    if as_json:
        context.print_json(json_of(tuned))
    else:
        show(tuned, messages)
    tuned.refuse_without_result()


def tried_values(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each argument; BadInput for an argument that is named twice."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, values = values_of(text)
        if name in found:
            raise BadInput(f"--try names {name} twice: give all of its values at once")
        found[name] = values
    return found


def values_of(text: str) -> tuple[str, list[Any]]:
    """A name and its values; BadInput for text of another form."""
    name, equals, given = text.partition("=")
    if not (equals and name and given):
        raise BadInput(f"--try {text!r} is not NAME=VALUE,VALUE")
    try:
        return name, _json(f"[{given}]")
    except ValueError:
        return name, [_value(text, each.strip()) for each in given.split(",")]


def _value(text: str, each: str) -> Any:
    try:
        return _json(each)
    except ValueError:
        pass
    if not each or set(each) & set('[]{}"'):
        raise BadInput(f"--try {text!r} is neither JSON nor words between commas")
    return each


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
