"""`engine.args: auto`: the arguments that `nightshift tune` kept, filled in once for a job."""

import re
from collections.abc import Mapping
from typing import Any

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.spec import JobSpec, VllmEngineSpec
from nightshift.producer.submit.paths import resolved

NOT_TUNED = "not tuned"
"""The source of arguments where none are known."""

SECRET = re.compile(r"(^|_)(auth|credentials?|keys?|passw(or)?d|secret|token)$", re.IGNORECASE)
"""Names of arguments whose values are never shown, such as hf_token."""


def filled_in(ledger: Ledger, spec: JobSpec, slots: Mapping[str, int] | None = None) -> JobSpec:
    """The spec with the arguments for its model on the hardware of its pool, and with their source; as
    it is where the spec does not say auto. A spec that was filled in stays as it is, also where nothing
    was known.

    `slots` says how many slots of this machine have which hardware, where this machine runs the job.
    """
    engine = spec.engine
    if not isinstance(engine, VllmEngineSpec) or not engine.args_auto:
        return spec
    if engine.args_from is not None:
        return spec
    known = _slots_of_pool(ledger, spec) if slots is None else slots
    found = tunings.chosen(_kept(ledger, spec), known)
    source = NOT_TUNED if found is None else _source(found, known, is_here=slots is not None)
    args = {} if found is None else dict(found.args)
    filled = engine.model_copy(update={"args": args, "args_from": source})
    return spec.model_copy(update={"engine": filled})


def filled_as(spec: JobSpec, done: JobSpec) -> JobSpec:
    """The spec with the arguments that auto stands for in another one, its pilot."""
    engine, other = spec.engine, done.engine
    if not isinstance(engine, VllmEngineSpec) or not isinstance(other, VllmEngineSpec):
        return spec
    if not engine.args_auto:
        return spec
    known = {"args": other.args, "args_from": other.args_from or NOT_TUNED}
    return spec.model_copy(update={"engine": engine.model_copy(update=known)})


def remark(spec: JobSpec) -> str | None:
    """What auto stands for in the spec of a job, and why; None where the spec does not say auto."""
    engine = spec.engine
    if not isinstance(engine, VllmEngineSpec) or not engine.args_auto:
        return None
    if engine.args_from == NOT_TUNED:
        return (
            "engine.args: auto: no tuned arguments are known for this model, task and hardware, so "
            "vLLM's own defaults hold; `nightshift tune` finds them"
        )
    return (
        f"engine.args: auto stands for {as_text(engine.args)}, which `nightshift tune` kept for "
        f"{engine.args_from}"
    )


def as_text(args: Mapping[str, Any]) -> str:
    """Arguments for a person, secrets left out."""
    shown = without_secrets(args)
    return " ".join(f"{name}={value}" for name, value in shown.items()) or "vLLM's own defaults"


def without_secrets(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with *** in the place of values that only their owner may see."""
    return {name: _shown(name, value) for name, value in args.items()}


def _shown(name: str, value: Any) -> Any:
    if value and SECRET.search(name):
        return "***"
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, list):
        return [_shown("", each) for each in value]
    return value


def _slots_of_pool(ledger: Ledger, spec: JobSpec) -> Mapping[str, int]:
    with ledger.transaction() as connection:
        return tunings.hardware(connection, spec.pool)


def _kept(ledger: Ledger, spec: JobSpec) -> list[Tuning]:
    """What is kept for the model and the task of a spec."""
    engine = resolved(spec).engine
    assert isinstance(engine, VllmEngineSpec)
    with ledger.transaction() as connection:
        return tunings.of_model(connection, engine.model, spec.task.kind)


def _source(found: Tuning, slots: Mapping[str, int], *, is_here: bool) -> str:
    """The hardware that decided, and by which rule."""
    if is_here:
        return f"{found.hardware}, the hardware of this machine"
    if not slots:
        return f"{found.hardware}, the only tuned hardware; the pool has no live slot"
    own, every = slots[found.hardware], sum(slots.values())
    return f"{found.hardware}, which {own:,} of {every:,} live slots of the pool have"
