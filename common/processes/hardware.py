"""What a slot is made of, in words: the GPUs that it has, or the cores of its machine."""

import os
from collections.abc import Sequence
from pathlib import Path

from nightshift.common.settings import visible_gpus

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


def _values(path: Path, key: str) -> list[str]:
    """The values of a key in a file of lines `key : value`; none where the file cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]
