"""Which process a pid is: pids are reused, so a start time and a kernel name it, too."""

from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A line of the process table; `started` is in clock ticks since the kernel's boot."""

    state: str
    pgid: int
    session: int
    started: int

    @property
    def is_over(self) -> bool:
        """A zombie holds nothing, and its parent may never reap it."""
        return self.state in "ZX"


def look(pid: int | str) -> Process | None:
    """The process that has this pid now; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it is gone, or hidden from us
        return None
    # The command's name may hold anything, so count the fields behind its last parenthesis.
    fields = text.rpartition(")")[2].split()
    return Process(fields[0], int(fields[2]), int(fields[3]), int(fields[19]))


def kernel() -> str:
    """Names the boot of the kernel and the pid namespace: pids mean something only within both."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
