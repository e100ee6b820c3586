"""What a submit answers: the job, and the fields that a second submit asked for in vain, since those
outside the identity of a job keep their values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nightshift.common.spec import JobSpec, OpenaiEngineSpec, changes, finish_by
from nightshift.common.spec.engines import PRICES
from nightshift.common.spec.job import AUTO, IDENTITY
from nightshift.common.states import JobState
from nightshift.common.text import first_few, left_out_rows

DEADLINE = "limits.finish_by"

FLAGS = {
    ".".join(place): f"--{field.replace('_', '-')}" for field, place in changes.CHANGEABLE.items()
} | {DEADLINE: "--finish-by"}
"""The flag of `nightshift set` for each place of a spec that the command changes."""

SAME_MOMENT = timedelta(minutes=10)
"""A duration counts from the begin of a submit, and planning may take minutes."""


@dataclass(frozen=True, slots=True)
class KeptField:
    """A field of a job that keeps the value `held`, although a later submit `asked` for another."""

    place: str
    held: Any
    asked: Any

    def message(self, job_id: int) -> str:
        """What stays as it is, and the command that changes it, where there is one."""
        kept = f"job {job_id} keeps {self.place} {_text(self.held)}, not {_text(self.asked)}"
        flag = FLAGS.get(self.place)
        if flag is None:
            return f"{kept}: it is fixed at the first submit"
        return f"{kept}: `nightshift set {job_id} {flag} {_text(self.asked)}` changes it"


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job of a submitted spec, whether it is new or was found.

    `kept` are the fields in which the spec differs from that of a job that was found; `beside` are
    the names of files that are no job's in the output directory of a new one. `new_files` of its
    input a job that was found does not have; a watched one takes them by itself. `arranged` says of a new
    job that its rows run in another order than the dataset's; `auto_args` what `engine.args: auto` stands
    for in it. `linked_twice` is what the listing of the input remarks,
    `newer_version` that the table it reads has a newer version, `rows_left_out` how many rows of its files `input.where` leaves out. `budget_counts` says how the budget of a new job
    counts tokens.
    """

    job_id: int
    is_new: bool
    rows: int
    batches: int
    state: JobState
    kept: tuple[KeptField, ...] = ()
    beside: tuple[str, ...] = ()
    new_files: int = 0
    watch_seconds: int | None = None
    arranged: bool = False
    auto_args: str | None = None
    linked_twice: str | None = None
    rows_left_out: int = 0
    newer_version: str | None = None
    budget_counts: str | None = None

    @property
    def remarks(self) -> list[str]:
        """What the user of `submit` should know of the job: sentences."""
        if self.state is JobState.FAILED:
            retry = f"`nightshift retry {self.job_id} --failed`"
            return [f"job {self.job_id} has failed: fix the cause, then {retry} continues the job"]
        found = [] if self.state.over else [field.message(self.job_id) for field in self.kept]
        if self.beside:
            found.append(
                "the output directory is not empty: the parts will lie beside "
                f"{first_few(self.beside, 3)}"
            )
        if self.linked_twice is not None:
            found.append(self.linked_twice)
        if self.rows_left_out:
            found.append(left_out_rows(self.rows_left_out))
        found += filter(None, (self.auto_args, self.budget_counts))
        if self.arranged:
            found.append(
                "the rows run sorted by the beginnings of their requests (batch.arrange): "
                f"`nightshift collect {self.job_id} --to FILE` gives them in dataset order"
            )
        if self.newer_version is not None and self.watch_seconds is None:
            found.append(self.newer_version)
        if self.watch_seconds is not None:
            found.append(
                f"a reaper looks for new files every {self.watch_seconds} s, and the job stays open: "
                f"`nightshift submit --append {self.job_id} --last` takes what is there and ends that"
            )
        elif self.new_files:
            found.append(
                f"files of its input that it does not have: {self.new_files:,}; `nightshift submit "
                f"--append {self.job_id}` adds them"
            )
        return found


def budget_counts(spec: JobSpec) -> str | None:
    """How the budget of a new job counts tokens, where these are counted by a server that is not ours."""
    engine = spec.engine
    prices = (engine.price_per_million_prompt_tokens, engine.price_per_million_output_tokens)
    if spec.limits.budget is None or not isinstance(engine, OpenaiEngineSpec) or not any(prices):
        return None
    return (
        f"limits.budget counts the tokens that {engine.base_url} reports as `usage`; for a response without them it "
        "counts an estimate, a token for four bytes of text, and `nightshift status` marks the cost as an estimate"
    )


def kept_fields(held: JobSpec, asked: JobSpec) -> tuple[KeptField, ...]:
    """Every field in which a spec of the same identity differs from that of its job; a deadline, which is
    no part of a stored spec, is left out.
    """
    places = sorted({*_places(held), *_places(asked)} - {DEADLINE})
    values = ((place, _value(held, place), _value(asked, place)) for place in places)
    return tuple(KeptField(place, old, new) for place, old, new in values if old != new)


def kept_deadline(
    held: datetime | None, asked: str | None, submitted: datetime
) -> tuple[KeptField, ...]:
    """The deadline of a job where a spec asks for another one. What the spec says counts from the time
    when the job was submitted: the same command asks for the same moment.
    """
    meant = None if asked is None else finish_by.meaning(asked, submitted.astimezone())
    if meant == held or (meant and held and abs(meant - held) < SAME_MOMENT):
        return ()
    shown = None if held is None else held.astimezone().isoformat(" ", "minutes")
    return (KeptField(DEADLINE, shown, asked),)


def _places(spec: JobSpec) -> Iterator[str]:
    """The places outside the identity; fields that a dump leaves out have their default."""
    written = spec.model_dump(mode="json", by_alias=True)
    prices = {key: each for key, each in written["engine"].items() if key in PRICES}
    outside = {key: each for key, each in written.items() if key not in IDENTITY}
    # A dump leaves the field out where it is not set.
    unique = {"unique_id": spec.input.unique_id}
    return _leaves({**outside, "engine": prices, "input": unique}, "")


def _leaves(values: Mapping[str, Any], before: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _value(spec: JobSpec, place: str) -> Any:
    found: Any = spec
    for name in place.split("."):
        found = getattr(found, name)
    return found


def differing_sections(held: JobSpec, asked: JobSpec) -> list[str]:
    """The places inside the identity in which two specs differ, at most one level deep: task.prompt.
    What auto stands for in both of them is no difference.
    """
    are_auto = all(getattr(spec.engine, "args_auto", False) for spec in (held, asked))
    apart = {*PRICES, "watch", "unique_id", *(AUTO if are_auto else ("args_from",))}
    old, new = (
        spec.model_dump(mode="json", by_alias=True, include=set(IDENTITY)) for spec in (held, asked)
    )
    return [
        f"{section}.{key}"
        for section in IDENTITY
        for key in dict.fromkeys([*old[section], *new[section]])
        if key not in apart and old[section].get(key) != new[section].get(key)
    ]


def _text(value: Any) -> str:
    if value is None:
        return changes.NONE
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
