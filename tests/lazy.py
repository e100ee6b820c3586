"""Imports that wait: every process of the run collects every test, and few need what is heavy."""

import importlib
from typing import Any


class Lazy:
    """A module that is imported when somebody first asks for a name in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
