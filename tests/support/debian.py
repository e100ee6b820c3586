"""Debian's packages, unpacked below a folder: nothing is installed outside of it."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FETCH_SECONDS = 600


@contextmanager
def unpacked(folder: Path, packages: Sequence[str]) -> Iterator[Path]:
    """Unpacks packages into `root` of a folder, with what this machine lacks of their dependencies. Inside of the
    context the folder still has another name: what is written there appears with the rest, or not at all.
    """
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    lists, cache, root = (part / name for name in ("lists", "cache", "root"))
    for made in (lists / "partial", cache / "archives/partial", root):
        made.mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "--quiet", "--quiet", "--option", f"Dir::State::Lists={lists}"]
    apt += ["--option", f"Dir::Cache={cache}", "--option", "Debug::NoLocking=true"]
    apt += ["--option", "APT::Sandbox::User="]
    _ran([*apt, "update"])
    chosen = ["--download-only", "--no-install-recommends", "--yes", "install", *packages]
    _ran([*apt, *chosen])
    for package in sorted((cache / "archives").glob("*.deb")):
        _ran(["dpkg-deb", "--extract", str(package), str(root)])
    shutil.rmtree(cache)
    shutil.rmtree(lists)
    yield part
    part.rename(folder)  # a fetch that was cut off leaves nothing that looks whole


def _ran(command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        timeout=FETCH_SECONDS,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


def is_here() -> bool:
    """Whether this machine's packages are Debian's; Ubuntu's chromium is a stub that asks for snap."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return "ID=debian" in lines
