"""Processes run as the containers of the images would be: a user without rights, a root file system
that cannot be written, an environment of nothing but what is given.

As root with the right to mount, each process gets a mount namespace in which every file system is
read-only but for /tmp, which is its own, and MOUNTED, where the folders of the volumes are. As root
without that right the program's folders merely belong to root. As anybody else, and as root without
that right whose private home has the programs in it, the processes run as that user.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

USER = 10001

HERE = Path(__file__).parents[2]

MOUNTED = Path("/mnt")

TMP = "/tmp"

BIN = Path(sys.prefix) / "bin"

OWN_FILE_SYSTEMS = ("/proc", "/sys", "/dev", str(MOUNTED))
"""Mounts that a container has of its own, and may write to as far as it has the right."""


class Containers:
    """What one test runs on one machine; `volumes` are folders under `folder` that can be written.

    A process knows a volume by `inside(name)`, the test by `outside(name)`.
    """

    def __init__(self, folder: Path, *volumes: str) -> None:
        is_root = os.getuid() == 0
        self.has_mounts = is_root and may_mount()
        self.is_other = self.has_mounts or (
            is_root and not any(map(_closed_to_others, _programs()))
        )
        self._folder = folder
        folder.chmod(0o755)
        for name in volumes:
            self.outside(name).mkdir()
            if self.is_other:
                os.chown(self.outside(name), USER, USER)

    def compile(self, library: str, *modules: str) -> None:
        """Lets Python keep what it compiles of a library, as a build of an image does: who may not
        write compiles everything anew in each process.
        """
        found = importlib.util.find_spec(library)
        if found is None or found.cached is None or not Path(found.cached).exists():
            program = "; ".join(f"import {module}" for module in modules)
            told = {
                name: value
                for name, value in os.environ.items()
                if name != "PYTHONDONTWRITEBYTECODE"
            }
            subprocess.run(
                [sys.executable, "-c", program], env=told, capture_output=True, check=True
            )

    def outside(self, volume: str) -> Path:
        """The folder of a volume as the test sees it."""
        return self._folder / volume

    def inside(self, volume: str) -> Path:
        """The folder of a volume as the processes see it."""
        return (MOUNTED if self.has_mounts else self._folder) / volume

    def start(
        self, command: list[str], environment: dict[str, str], log: Path | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command; its pid is the command's own. Output goes to a file, or to pipes."""
        with log.open("a") if log else open(os.devnull, "w") as output:
            return subprocess.Popen(
                [*self._entering(), "env", "-i", *_said(environment), *command],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output if log else subprocess.PIPE,
                stderr=output if log else subprocess.PIPE,
                text=True,
                umask=0o022,
                start_new_session=True,
            )

    def run(
        self, command: list[str], environment: dict[str, str], seconds: float = 100
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        with self.start(command, environment) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _entering(self) -> list[str]:
        if not self.is_other:
            return []
        become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        become += ["--no-new-privs", "--bounding-set=-all"]
        if not self.has_mounts:
            return become
        return ["unshare", "--mount", "sh", "-c", self._mounting(), "sh", *become]

    def _mounting(self) -> str:
        # The folder of the volumes may lie under /tmp, and so may the programs: what is still wanted
        # is held here while others are covered.
        kept = MOUNTED / "kept"
        lines = [
            f"mount -n -t tmpfs tmpfs {MOUNTED}",
            f"mkdir -p {kept}/volumes",
            f"mount -n --bind {shlex.quote(str(self._folder))} {kept}/volumes",
        ]
        lines += [
            f"mount -n -o remount,bind,ro {shlex.quote(mount)}"
            for mount, options in _mounts()
            if "rw" in options and not mount.startswith(OWN_FILE_SYSTEMS)
        ]
        # Under a private home nobody else reaches a program, so such a home is covered by an empty
        # one that has the program alone; so is /tmp, for everybody.
        covered = {program: home for program in _programs() if (home := _covered(program))}
        for number, program in enumerate(covered):
            lines += [f"mkdir {kept}/{number}"]
            lines += [f"mount -n --bind {shlex.quote(program)} {kept}/{number}"]
        homes = sorted({*covered.values()} - {TMP})
        for home in (TMP, *homes):
            lines += [f"mount -n -t tmpfs -o mode=755 tmpfs {shlex.quote(home)}"]
        for number, program in enumerate(covered):
            lines += [f"mkdir -p {shlex.quote(program)}"]
            lines += [f"mount -n --move {kept}/{number} {shlex.quote(program)}"]
        lines += [f"mount -n -o remount,ro {shlex.quote(home)}" for home in homes]
        lines += [f"chmod 1777 {TMP}", f"mount -n --bind {kept}/volumes {MOUNTED}", 'exec "$@"']
        return " && ".join(lines)


def _said(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _mounts() -> list[tuple[str, list[str]]]:
    """Mount points as they are now, and the options of each."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(words[1], words[3].split(",")) for words in lines]


def may_mount() -> bool:
    """Whether this process may mount in a namespace of its own."""
    if not all(map(shutil.which, ("unshare", "mount", "setpriv"))):
        return False
    tried = ["unshare", "--mount", "mount", "-n", "-t", "tmpfs", "tmpfs", str(MOUNTED)]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def _programs() -> set[str]:
    """The folders of what is run: the repository, its environment, and the Python below it."""
    return {str(Path(one).resolve()) for one in (HERE, sys.prefix, sys.base_prefix)}


def _covered(program: str) -> str | None:
    """The folder above a program that is covered by an empty one."""
    return TMP if program.startswith(f"{TMP}/") else _closed_to_others(program)


def _closed_to_others(program: str) -> str | None:
    """The uppermost folder above a program that only its owner may walk."""
    for folder in reversed(Path(program).parents):
        if not folder.stat().st_mode & 0o001:
            return str(folder)
    return None
