"""Processes run as the containers of the images would be: a user without rights, a root file system
that cannot be written, an environment of nothing but what is given.

As root with the right to mount, each process gets a mount namespace in which every file system is
read-only but for /tmp, which is its own, and MOUNTED, where the folders of the volumes are. As root
without that right the program's folders merely belong to root; as anybody else the processes run as
that user, who may own them.
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

BIN = Path(sys.prefix) / "bin"

OWN_FILE_SYSTEMS = ("/proc", "/sys", "/dev", str(MOUNTED))
"""Mounts that a container has of its own, and may write to as far as it has the right."""


class Containers:
    """What one test runs on one machine; `volumes` are folders under `folder` that can be written.

    A process knows a volume by `inside(name)`, the test by `outside(name)`.
    """

    def __init__(self, folder: Path, *volumes: str) -> None:
        self.is_root = os.getuid() == 0
        self.has_mounts = self.is_root and _may_mount()
        self._folder = folder
        folder.chmod(0o755)
        for name in volumes:
            self.outside(name).mkdir()
            if self.is_root:
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
        if not self.is_root:
            return []
        become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        become += ["--no-new-privs", "--bounding-set=-all"]
        if not self.has_mounts:
            return become
        return ["unshare", "--mount", "sh", "-c", self._mounting(), "sh", *become]

    def _mounting(self) -> str:
        lines = [f"mount -n --bind {shlex.quote(str(self._folder))} {MOUNTED}"]
        lines += [
            f"mount -n -o remount,bind,ro {shlex.quote(mount)}"
            for mount, options in _mounts()
            if "rw" in options and not mount.startswith(OWN_FILE_SYSTEMS)
        ]
        programs = {str(Path(one).resolve()) for one in (HERE, sys.prefix, sys.base_prefix)}
        # Under a private home nobody else reaches a program, so such a home is covered by an empty
        # one that has the program alone.
        closed = {program: home for program in programs if (home := _closed_to_others(program))}
        lines += ["mount -n -t tmpfs tmpfs /tmp", "mkdir /tmp/kept"]
        for number, program in enumerate(closed):
            lines += [f"mkdir /tmp/kept/{number}"]
            lines += [f"mount -n --bind {shlex.quote(program)} /tmp/kept/{number}"]
        for home in sorted(set(closed.values())):
            lines += [f"mount -n -t tmpfs -o mode=755 tmpfs {shlex.quote(home)}"]
        for number, (program, _) in enumerate(closed.items()):
            lines += [f"mkdir -p {shlex.quote(program)}"]
            lines += [f"mount -n --move /tmp/kept/{number} {shlex.quote(program)}"]
        lines += [f"mount -n -o remount,ro {shlex.quote(home)}" for home in set(closed.values())]
        lines += ["rm -r /tmp/kept", "chmod 1777 /tmp", 'exec "$@"']
        return " && ".join(lines)


def _said(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _mounts() -> list[tuple[str, list[str]]]:
    """Mount points as they are now, and the options of each."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(words[1], words[3].split(",")) for words in lines]


def _may_mount() -> bool:
    if not all(map(shutil.which, ("unshare", "mount", "setpriv"))):
        return False
    tried = ["unshare", "--mount", "mount", "-n", "-t", "tmpfs", "tmpfs", str(MOUNTED)]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def _closed_to_others(program: str) -> str | None:
    """The uppermost folder above a program that only its owner may walk."""
    for folder in reversed(Path(program).parents):
        if not folder.stat().st_mode & 0o001:
            return str(folder)
    return None
