"""Memory and utilisation of this machine's GPUs, read from NVML where there is one."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import structlog

from nightshift.common.telemetry import metrics
from nightshift.common.telemetry.metrics import Metric

log = structlog.get_logger(__name__)

Reading = tuple[Metric, str, float]


class Gpus:
    """GPUs by the name that they are known by, and NVML to ask; `nvml` is the module pynvml."""

    def __init__(self, nvml: Any, handles: Sequence[tuple[str, Any]]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._reading = threading.Lock()

    @classmethod
    def find(cls, named: Sequence[str] | None) -> "Gpus":
        """The GPUs of CUDA_VISIBLE_DEVICES (indices or UUIDs), or all when `named` is None.

        Without NVML, its package or a GPU there are none, and a debug line says why.
        """
        try:
            import pynvml

            pynvml.nvmlInit()
            names = named
            if names is None:
                names = [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        except Exception as error:  # an import or a driver: only metrics are missing then
            log.debug("no_nvml", error=str(error))
            return NO_GPUS
        by_index: Callable[[int], Any] = pynvml.nvmlDeviceGetHandleByIndex
        by_id: Callable[[str], Any] = pynvml.nvmlDeviceGetHandleByUUID
        handles = []
        for name in names:
            try:
                handles.append((name, by_index(int(name)) if name.isdigit() else by_id(name)))
            except pynvml.NVMLError as error:
                log.debug("no_gpu", gpu=name, error=str(error))
        return cls(pynvml, handles)

    def read(self) -> Iterator[Reading]:
        """The figures of each GPU now, without those that it does not support.

        While another thread reads, nothing: a driver that hangs then keeps one thread, not one for
        each scrape.
        """
        if not self._reading.acquire(blocking=False):
            return
        try:
            for gpu, handle in self._handles:
                with suppress(self._nvml.NVMLError):
                    memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                    yield metrics.GPU_MEMORY_USED, gpu, float(memory.used)
                    yield metrics.GPU_MEMORY_TOTAL, gpu, float(memory.total)
                with suppress(self._nvml.NVMLError):
                    percent = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                    yield metrics.GPU_UTILIZATION, gpu, percent / 100
        finally:
            self._reading.release()


NO_GPUS = Gpus(None, ())
"""A machine without GPUs."""
