"""Slurm and an SSH server: those of this machine, else those of Debian that `python -m tests.launch.programs` has
unpacked in .venv, with the libraries that this machine lacks. Nothing is installed outside of that folder.
"""

import os
import shutil
import sys
from pathlib import Path

from tests.support import debian

FOLDER = Path(sys.prefix) / "launch"
"""Where `make test-slow` unpacks them."""

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "openssh-server")

SLURM = (
    "slurmctld",
    "slurmd",
    "munged",
    "sbatch",
    "srun",
    "scancel",
    "squeue",
    "scontrol",
    "sinfo",
)
SSH = ("sshd", "ssh", "ssh-keygen")

BINARIES = ("usr/sbin", "usr/bin")

ELSEWHERE = {"slurmctld": "slurmctld-wlm", "slurmd": "slurmd-wlm"}
"""Debian's installation gives these programs their usual names; here nothing is installed."""


def folders() -> list[str]:
    """Where programs are looked for, behind those of this machine."""
    own = [str(FOLDER / "root" / each) for each in BINARIES]
    return [*os.environ["PATH"].split(os.pathsep), "/usr/sbin", *own]


def path_of(program: str) -> Path | None:
    """Where a program is, if it is anywhere."""
    for name in (program, ELSEWHERE.get(program, program)):
        if found := shutil.which(name, path=os.pathsep.join(folders())):
            return Path(found)
    return None


def missing(programs: tuple[str, ...]) -> list[str]:
    """Those that are nowhere."""
    return [program for program in programs if path_of(program) is None]


def libraries() -> list[str]:
    """Folders with what the unpacked programs link."""
    return sorted({str(path.parent) for path in (FOLDER / "root/usr/lib").rglob("*.so*")})


def main() -> None:
    """Sees to it that the programs are there. On other systems than Debian their tests are skipped without."""
    if not missing(SLURM + SSH):
        return
    if not debian.is_here():
        print(
            f"{missing(SLURM + SSH)} are not here, and this is no Debian: tests/launch is skipped"
        )
        return
    with debian.unpacked(FOLDER, PACKAGES):
        pass
    if lacking := missing(SLURM + SSH):
        sys.exit(f"Debian's packages were unpacked, and {lacking} are not at their usual places")


if __name__ == "__main__":
    main()
