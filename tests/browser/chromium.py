"""Debian's Chromium: the one of this machine, else one that `python -m tests.browser.chromium FOLDER` has
unpacked there, with the libraries that this machine lacks. Nothing is installed outside of the folder.
"""

import shutil
import sys
from pathlib import Path

from tests.support import debian

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
    with debian.unpacked(folder, PACKAGES) as part:
        fonts = FONTS.format(fonts=folder / "root/usr/share/fonts", cache=folder / "fonts")
        (part / "fonts.conf").write_text(fonts)


def main() -> None:
    """Sees to it that there is a browser. On other systems than Debian its tests are skipped without one."""
    if found() is not None:
        return
    if not debian.is_here():
        print("no Chromium here, and no Debian: the tests of the console in a browser are skipped")
        return
    fetch(FOLDER)
    if found() is None:
        sys.exit("Debian's chromium was unpacked, and has no program at its usual place")


if __name__ == "__main__":
    main()
