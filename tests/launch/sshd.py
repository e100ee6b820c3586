"""An SSH server on loopback, in a mount namespace in which root's home is a folder of the test."""

import shlex
import subprocess
from pathlib import Path

from tests.launch import programs
from tests.support.fleet import wait_until
from tests.support.serve import free_port

SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
PasswordAuthentication no
StrictModes no
PermitRootLogin prohibit-password
"""

CLIENT = """
Host gpu-*
    HostName 127.0.0.1
    Port {port}
    User root
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking accept-new
"""

PASSWD = """root:*:0:0:root:{home}:/bin/bash
sshd:*:10002:65534::/run/sshd:/usr/sbin/nologin
"""


class Sshd:
    """One server; `client` is a folder with an `ssh` that knows the hosts gpu-1, gpu-2 …, which are all this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.client = folder / "home", folder / "client"
        self.log = folder / "sshd.log"

    def start(self) -> None:
        """Starts the server, and waits until it listens."""
        for each in (self.home, self.client):
            each.mkdir(parents=True)
        for key in ("host_key", "user_key"):
            made = [str(programs.path_of("ssh-keygen")), "-q", "-t", "ed25519", "-N", ""]
            subprocess.run([*made, "-f", str(self.folder / key)], check=True, timeout=60)
        place = {"folder": self.folder, "port": free_port(), "home": self.home}
        for name, text in (("sshd_config", SERVER), ("ssh_config", CLIENT), ("passwd", PASSWD)):
            (self.folder / name).write_text(text.format(**place))
        ssh = self.client / "ssh"
        ssh.write_text(
            f'#!/bin/sh\nexec {programs.path_of("ssh")} -F {self.folder}/ssh_config "$@"\n'
        )
        ssh.chmod(0o755)
        steps = [
            f"mount -n --bind {shlex.quote(str(self.folder / 'passwd'))} /etc/passwd",
            "mount -n -t tmpfs tmpfs /run",
            "mkdir -m 755 /run/sshd",
            'exec "$@"',
        ]
        server = [str(programs.path_of("sshd")), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", " && ".join(steps), "sh", *server],
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "LD_LIBRARY_PATH": ":".join(programs.libraries()),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(lambda: "Server listening" in self.log.read_text(), what="the SSH server")

    def end(self) -> None:
        """Ends the server."""
        self._process.terminate()
        self._process.wait(60)
