"""Whether a slot has the GPUs that an engine's arguments ask for."""

from collections.abc import Mapping
from math import prod
from typing import Any, Protocol

from nightshift.common.errors import EngineNotHere
from nightshift.common.permits.vllm_arguments import BEYOND_THE_SLOT, GPU_FACTORS
from nightshift.common.text import counted

LOCAL_BACKENDS = (None, "mp", "uni")
"""Values of distributed_executor_backend whose processes all run on this machine."""


class Platform(Protocol):
    """What vLLM says of the devices that a process sees; `device_type` is empty without any."""

    device_type: str

    def is_cuda_alike(self) -> bool:
        """True where the devices are GPUs that vLLM counts."""

    def device_count(self) -> int:
        """The GPUs that this process sees."""


def check(args: Mapping[str, Any], platform: Platform) -> None:
    """Raises EngineNotHere where the slot has fewer GPUs than the engine's arguments ask for.

    Another machine of the pool may have them, so the job waits for that one. vLLM itself says how many
    processes fit on a processor.
    """
    if not platform.device_type:
        raise EngineNotHere("vLLM finds no GPU on this worker, and was not built for its processor")
    remote = args.get("distributed_executor_backend") not in LOCAL_BACKENDS
    if not platform.is_cuda_alike() or remote or BEYOND_THE_SLOT & args.keys():
        return
    named = {name: args[name] for name in GPU_FACTORS if isinstance(args.get(name), int)}
    wanted, found = prod(named.values()), platform.device_count()
    if wanted > found:
        asked = ", ".join(f"{name} {value}" for name, value in named.items()) or "one process"
        raise EngineNotHere(
            f"engine.args ask for {counted(wanted, 'GPU')} ({asked}) and this slot has {found}: start a worker "
            f"with slots of {counted(wanted, 'GPU')}"
        )
