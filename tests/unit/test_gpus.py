"""GPU figures through a stand-in for NVML: a machine without one just has none."""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nightshift.worker.telemetry.gpus import GpuFigures, Gpus


class NVMLError(Exception):
    pass


class Nvml(ModuleType):
    """Two GPUs; the second one is a slice that cannot tell its utilisation."""

    NVMLError = NVMLError

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index > 1:
            raise NVMLError("Invalid Argument")
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        return name

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(used=5 if handle == "GPU-0" else 6, total=10)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if handle == "GPU-1":
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=75, memory=1)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    found = Nvml("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


def test_all_gpus_are_read_and_what_one_cannot_say_is_left_out(nvml: Nvml) -> None:
    assert list(Gpus.find(None).read()) == [
        ("memory_used", "0", 5),
        ("memory_total", "0", 10),
        ("busy", "0", 0.75),
        ("memory_used", "1", 6),
        ("memory_total", "1", 10),
    ]


def test_only_those_that_were_given_are_read_by_index_or_uuid(nvml: Nvml) -> None:
    assert {gpu for _, gpu, _ in Gpus.find(["1"]).read()} == {"1"}
    assert {gpu for _, gpu, _ in Gpus.find(["GPU-0"]).read()} == {"GPU-0"}
    assert list(Gpus.find([]).read()) == []
    assert list(Gpus.find(["7"]).read()) == []


def test_a_read_that_hangs_keeps_no_second_one(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus.find(["0"])
    seen: list[list[Any]] = []

    def hang(handle: str) -> Any:
        seen.append(list(gpus.read()))  # as another scrape would, meanwhile
        return SimpleNamespace(used=5, total=10)

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", hang)
    for _ in range(2):
        assert len(list(gpus.read())) == 3
    assert seen == [[], []]


def test_without_the_package_or_a_driver_there_are_none(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", no_driver)
    assert list(Gpus.find(None).read()) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert list(Gpus.find(None).read()) == []


def test_the_figures_of_a_slot_are_those_that_were_read_last(nvml: Nvml) -> None:
    figures = GpuFigures(Gpus.find(["0", "1"]))
    assert figures.of(["0"]) is None
    figures.read()
    assert json.loads(figures.of(["1", "0"]) or "") == [
        {"gpu": "1", "memory_used": 6, "memory_total": 10},
        {"gpu": "0", "memory_used": 5, "memory_total": 10, "busy": 0.75},
    ]
    assert GpuFigures.watch([]).of(["0"]) is None
