"""`engine.args: auto`: the arguments that `nightshift tune` kept, filled in when a job is submitted."""

from collections.abc import Mapping

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.spec import JobSpec, VllmEngineSpec
from nightshift.producer.submit.paths import resolved


def filled_in(ledger: Ledger, spec: JobSpec, slots: Mapping[str, int] | None = None) -> JobSpec:
    """The spec with the arguments for its model on the hardware of its pool; as it is where the spec
    does not say auto, where they are filled in already, or where none are known.

    `slots` says how many slots will have which hardware, where the ledger does not know.
    """
    engine = spec.engine
    if not isinstance(engine, VllmEngineSpec) or not engine.args_auto or engine.args:
        return spec
    found = kept(ledger, spec, slots)
    if found is None:
        return spec
    return spec.model_copy(update={"engine": engine.model_copy(update={"args": dict(found.args)})})


def kept(ledger: Ledger, spec: JobSpec, slots: Mapping[str, int] | None = None) -> Tuning | None:
    """What is kept for the model and task of a spec, and for the hardware of its pool or `slots`."""
    engine = resolved(spec).engine
    assert isinstance(engine, VllmEngineSpec)
    with ledger.transaction() as connection:
        if slots is None:
            slots = tunings.hardware(connection, spec.pool)
        found = tunings.of_model(connection, engine.model, spec.task.kind)
    return tunings.chosen(found, slots)


def remark(spec: JobSpec) -> str | None:
    """What auto stands for in the spec of a job; None where the spec does not say auto."""
    engine = spec.engine
    if not isinstance(engine, VllmEngineSpec) or not engine.args_auto:
        return None
    if not engine.args:
        return (
            "engine.args: auto: no tuned arguments are known for this model, task and hardware, so "
            "vLLM's own defaults hold; `nightshift tune` finds them"
        )
    shown = " ".join(f"{name}={value}" for name, value in sorted(engine.args.items()))
    return f"engine.args: auto stands for {shown}, as `nightshift tune` found"
