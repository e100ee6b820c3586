"""How many engines `nightshift run --slots` may have at once on this machine; a pure decision."""

from nightshift.common.errors import BadInput
from nightshift.common.processes.hardware import slot_count
from nightshift.common.spec import FunctionEngineSpec, JobSpec, OpenaiEngineSpec


def refuse_slots(spec: JobSpec, slots: int | None, gpus: int) -> None:
    """Raises BadInput where so many slots would not make the job faster, or do not fit to the `gpus`.

    A function has a process in each slot, a model is loaded in each. None is the worker's own choice:
    a slot for each GPU, or one without GPUs.
    """
    if slots is None:
        return
    if slots > 1 and isinstance(spec.engine, OpenaiEngineSpec):
        raise BadInput(
            f"--slots {slots}: one slot has engine.concurrency = {spec.engine.concurrency} calls at the server at "
            "once: set engine.concurrency, and leave --slots out"
        )
    if slots > 1 and not gpus and not isinstance(spec.engine, FunctionEngineSpec):
        raise BadInput(
            f"--slots {slots}: without a GPU one engine uses all cores, and each further one would load the "
            "model into memory once more: leave --slots out, which is for functions and GPUs"
        )
    slot_count(slots, gpus)
