"""What a slot is made of, in words."""

import os
from pathlib import Path

from nightshift.common.processes import hardware

CPUS = (
    "processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n"
)


def test_a_slot_is_its_gpus_or_the_cores_of_its_machine(tmp_path: Path) -> None:
    (cpus := tmp_path / "cpuinfo").write_text(CPUS)
    driver = tmp_path / "gpus"
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (driver / name).mkdir(parents=True)
        text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t 130\n"
        (driver / name / "information").write_text(text)
    cores = len(os.sched_getaffinity(0))
    nowhere = tmp_path / "nowhere"

    assert hardware.of_slot([], driver, cpus) == f"{cores} CPU cores, AMD EPYC 9654"
    assert hardware.of_slot([], driver, nowhere) == f"{cores} CPU cores"
    assert hardware.of_slot(["0", "1"], driver, cpus) == "2 x NVIDIA H100 80GB HBM3"
    assert hardware.of_slot(["0"], nowhere, cpus) == "1 x GPU"
    (driver / "0000:02:00.0" / "information").write_text("Model: NVIDIA L4\n")
    assert hardware.of_slot(["1"], driver, cpus) == "1 x NVIDIA H100 80GB HBM3 or NVIDIA L4"
