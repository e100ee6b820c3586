"""Where the calls of a script or a notebook show how a job goes, and which settings they have."""

import sys
from typing import Any

from rich.console import Console

from nightshift.common import logs
from nightshift.common.settings import Settings, load_settings
from nightshift.producer.cli.console import SafeConsole


def settings_of(**given: Any) -> Settings:
    """The settings of the environment with those that were given; our code logs warnings alone."""
    logs.configure_library()
    return load_settings(**{name: each for name, each in given.items() if each is not None})


def console(*, progress: bool) -> Console:
    """The cell of a notebook, else stderr, which leaves stdout to the program."""
    shown = SafeConsole(highlight=False, quiet=not progress)
    if shown.is_jupyter:
        return shown
    width = None if sys.stderr.isatty() else 160
    return SafeConsole(highlight=False, quiet=not progress, stderr=True, width=width)
