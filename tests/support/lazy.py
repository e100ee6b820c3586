"""Imports that wait: every process of the run collects every test, and few need what is heavy."""

import importlib
from typing import Any


class Lazy:
    """A module that is imported when a test first asks for a name in it; pytest's own questions to
    whatever stands in a test's file import nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
