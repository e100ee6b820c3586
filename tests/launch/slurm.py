"""A real Slurm on this machine: munged, slurmctld and slurmd in the foreground, in one folder, on loopback."""

import getpass
import os
import re
import secrets
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.launch import programs
from tests.support.fleet import wait_until
from tests.support.serve import free_port

CONF = """
ClusterName=nightshift-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
{plugins}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

FIRST_WITHOUT_CGROUPS = 23
"""From this release on `cgroup.conf` can say that there are none; before, an unused plugin of theirs is loaded."""

END_SECONDS = 60

OPEN = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}


class Slurm:
    """One controller and one node of two CPUs, of the user who runs the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        libraries = programs.libraries()
        plugins = [path for path in libraries if path.endswith(("/slurm-wlm", "/slurm"))]
        self._plugins = f"PluginDir={plugins[0]}" if plugins else ""
        self.environment = {
            "PATH": os.pathsep.join(programs.folders()),
            "SLURM_CONF": str(folder / "slurm.conf"),
            **({"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}),
        }

    def start(self) -> None:
        """Starts the daemons, and waits until the node takes jobs."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "slurm.conf").write_text(
            CONF.format(
                folder=self.folder,
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                controller_port=free_port(),
                node_port=free_port(),
                plugins=self._plugins,
            )
        )
        release = re.search(r"(\d+)\.", self.command("sbatch", "--version"))
        assert release is not None
        is_old = int(release[1]) < FIRST_WITHOUT_CGROUPS
        cgroups = "cgroup/v1" if is_old else "disabled"
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin={cgroups}\n")
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(64))
        own = [
            f"--{name}={self.folder}/munge.{name.partition('-')[0]}"
            for name in ("socket", "pid-file")
        ]
        own += [f"--key-file={key}", f"--seed-file={self.folder}/munge.seed"]
        self._daemon("munged", "--foreground", "--force", *own)
        wait_until((self.folder / "munge.socket").exists, what="munged")
        self._daemon("slurmctld", "-D", "-c")
        stepd = programs.path_of("slurmd").with_name("slurmstepd-wlm")  # type: ignore[union-attr]
        self._daemon("slurmd", "-D", "-N", "node", *(["-d", str(stepd)] if stepd.exists() else []))
        wait_until(
            lambda: "idle" in self.command("sinfo", "--noheader", "--format=%T", is_checked=False),
            what=f"a node of Slurm: {self.logs()}",
        )

    def _daemon(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.log").open("wb") as log:
            self.daemons.append(
                subprocess.Popen(
                    [str(programs.path_of(program)), *arguments],
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def command(
        self, program: str, *arguments: str, is_checked: bool = True, **environment: str
    ) -> str:
        """What a command of Slurm printed."""
        done = subprocess.run(
            [str(programs.path_of(program)), *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=END_SECONDS,
            check=False,
        )
        assert not is_checked or done.returncode == 0, f"{done.stderr}{self.logs()}"
        return done.stdout

    def submit(self, script: Path, *arguments: str, **environment: str) -> int:
        """The number of a job of one CPU."""
        said = self.command(
            "sbatch", "--parsable", "--cpus-per-task=1", str(script), *arguments, **environment
        )
        return int(said)

    def job(self, number: int) -> dict[str, str]:
        """What Slurm knows of a job, by field."""
        words = self.command("scontrol", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, number: int) -> dict[str, str]:
        """The same once none of the job's processes is left."""
        wait_until(lambda: self.job(number)["JobState"] not in OPEN, what="the end of the job")
        return self.job(number)

    def logs(self) -> str:
        """What daemons and jobs wrote, for the message of an assertion."""
        paths = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("slurm-*.out"))]
        return "".join(f"\n== {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def end(self) -> None:
        """Ends the jobs, then the daemons that this object started."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.command(
                "scancel",
                "--full",
                "--signal=KILL",
                f"--user={getpass.getuser()}",
                is_checked=False,
            )
            wait_until(
                lambda: not self.command("squeue", "--noheader", is_checked=False),
                seconds=END_SECONDS,
                what="the end of the jobs",
            )
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
