"""How many slots a machine has, and what one is made of, in words: its GPUs, or the cores of the machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from nightshift.common.errors import BadInput
from nightshift.common.settings import visible_gpus
from nightshift.common.text import counted

_DRIVER = Path("/proc/driver/nvidia/gpus")
_CPUS = Path("/proc/cpuinfo")


def of_slot(gpus: Sequence[str], driver: Path = _DRIVER, cpus: Path = _CPUS) -> str:
    """Such as `2 x NVIDIA H100 80GB HBM3`, or `16 CPU cores, AMD EPYC 9654`.

    The names of GPUs are those of the machine's driver; of GPUs of several models all are named.
    """
    if not gpus:
        names = _values(cpus, "model name")
        return ", ".join([f"{len(os.sched_getaffinity(0))} CPU cores", *names[:1]])
    models = {name for path in driver.glob("*/information") for name in _values(path, "Model")}
    return f"{len(gpus)} x {' or '.join(sorted(models)) or 'GPU'}"


def of_this_machine() -> str:
    """What a slot of a worker here has that is started without `--slots`."""
    return of_slot(visible_gpus()[:1])


def slot_count(wanted: int | None, gpus: int) -> int:
    """One slot a GPU, or as many as are wanted; one on a machine without GPUs, by default.

    Raises BadInput when the number of GPUs is not a multiple of the slots. Without GPUs any number of slots
    is allowed.
    """
    slots = wanted or max(1, gpus)
    if gpus % slots:
        even = [str(number) for number in range(1, gpus + 1) if gpus % number == 0]
        raise BadInput(
            f"--slots {slots}: {counted(gpus, 'GPU')} cannot be shared evenly among {counted(slots, 'slot')}; name "
            f"{' or '.join(even)}, or set CUDA_VISIBLE_DEVICES to the GPUs of this worker (empty: "
            "none)"
        )
    return slots


def _values(path: Path, key: str) -> list[str]:
    """The values of a key in a file of lines `key : value`; none where the file cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]
