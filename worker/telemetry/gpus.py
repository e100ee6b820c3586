"""Memory and utilisation of this machine's GPUs, read from NVML where there is one."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import structlog

log = structlog.get_logger(__name__)

Reading = tuple[str, str, float]
"""A figure (memory_used, memory_total, busy), a GPU and the value: bytes, or a share of the time."""


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
                    yield "memory_used", gpu, float(memory.used)
                    yield "memory_total", gpu, float(memory.total)
                with suppress(self._nvml.NVMLError):
                    percent = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                    yield "busy", gpu, percent / 100
        finally:
            self._reading.release()


NO_GPUS = Gpus(None, ())
"""A machine without GPUs."""

FIGURES_SECONDS = 10.0
"""Pause between two readings for those who look at the fleet."""


class GpuFigures:
    """The last figures of a machine's GPUs, read by a thread of its own: a driver may hang."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._last: dict[str, dict[str, float]] = {}

    @classmethod
    def watch(cls, named: Sequence[str]) -> "GpuFigures":
        """Reads now and then from here on; without a GPU nothing is read."""
        if not named:
            return cls(NO_GPUS)
        found = cls(Gpus.find(named))
        threading.Thread(target=found._watch, name="gpu figures", daemon=True).start()
        return found

    def of(self, gpus: Sequence[str]) -> str | None:
        """The last figures of some GPUs as a JSON array; None where none was ever read."""
        known = [{"gpu": gpu, **self._last[gpu]} for gpu in gpus if gpu in self._last]
        return json.dumps(known) if known else None

    def read(self) -> None:
        """Reads the figures once."""
        found: dict[str, dict[str, float]] = {}
        for figure, gpu, value in self._gpus.read():
            found.setdefault(gpu, {})[figure] = value
        self._last = found or self._last

    def _watch(self) -> None:
        while True:
            with suppress(Exception):  # figures only
                self.read()
            time.sleep(FIGURES_SECONDS)
