"""Debian's Chromium: the one of this machine, else one that `python -m tests.browser.chromium FOLDER` has
unpacked there, with the libraries that this machine lacks. Nothing is installed outside of the folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FOLDER = Path(sys.prefix) / "chromium"
"""Where `make test-slow` unpacks it."""

PACKAGES = ("chromium", "fonts-dejavu-core")

FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{fonts}</dir><cachedir>{cache}</cachedir>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
<match><edit name="family" mode="append"><string>DejaVu Sans</string></edit></match>
</fontconfig>
"""

FETCH_SECONDS = 600


def found() -> tuple[Path, dict[str, str]] | None:
    """The program and what its environment needs besides; None where there is none."""
    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return Path(path), {}
    program = FOLDER / "root/usr/lib/chromium/chromium"
    if not program.is_file():
        return None
    libraries = sorted({str(path.parent) for path in (FOLDER / "root").rglob("*.so*")})
    own = {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(FOLDER / "fonts.conf")}
    return program, own


def fetch(folder: Path) -> None:
    """Unpacks Chromium below a folder, with what this machine lacks of its dependencies."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    lists, cache, root = (part / name for name in ("lists", "cache", "root"))
    for made in (lists / "partial", cache / "archives/partial", root):
        made.mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "--quiet", "--quiet", "--option", f"Dir::State::Lists={lists}"]
    apt += ["--option", f"Dir::Cache={cache}", "--option", "Debug::NoLocking=true"]
    apt += ["--option", "APT::Sandbox::User="]
    _ran([*apt, "update"])
    chosen = ["--download-only", "--no-install-recommends", "--yes", "install", *PACKAGES]
    _ran([*apt, *chosen])
    for package in sorted((cache / "archives").glob("*.deb")):
        _ran(["dpkg-deb", "--extract", str(package), str(root)])
    fonts = FONTS.format(fonts=folder / "root/usr/share/fonts", cache=folder / "fonts")
    (part / "fonts.conf").write_text(fonts)
    shutil.rmtree(cache)
    shutil.rmtree(lists)
    part.rename(folder)  # a fetch that was cut off leaves nothing that looks whole


def _ran(command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        timeout=FETCH_SECONDS,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


def is_debian() -> bool:
    """Whether this machine's packages are Debian's; Ubuntu's chromium is a stub that asks for snap."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return "ID=debian" in lines


def main() -> None:
    """Sees to it that there is a browser. On other systems than Debian its tests are skipped without one."""
    if found() is not None:
        return
    if not is_debian():
        print("no Chromium here, and no Debian: the tests of the console in a browser are skipped")
        return
    fetch(FOLDER)
    if found() is None:
        sys.exit("Debian's chromium was unpacked, and has no program at its usual place")


if __name__ == "__main__":
    main()
