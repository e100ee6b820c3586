"""What is refused in a template before it runs: what templates do not have, each with its line."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeVisitor

from nightshift.common.templates import limits

LOOPS = 2
"""Most loops around a part of a template."""

LEFT_OUT: Final = ("cycler", "dict", "joiner", "lipsum", "namespace")
"""Functions of Jinja that templates do not have. A template cannot use columns of these names, nor one named `range`."""

_NODES = (
    nodes.And, nodes.Assign, nodes.AssignBlock, nodes.BinExpr, nodes.Call, nodes.CallBlock, nodes.Compare, nodes.Concat,
    nodes.CondExpr, nodes.Const, nodes.Dict, nodes.Filter, nodes.FilterBlock, nodes.For, nodes.Getattr, nodes.Getitem,
    nodes.If, nodes.Keyword, nodes.List, nodes.Macro, nodes.Name, nodes.Not, nodes.Operand, nodes.Or, nodes.Output,
    nodes.Pair, nodes.Slice, nodes.Template, nodes.TemplateData, nodes.Test, nodes.Tuple, nodes.UnaryExpr, nodes.With,
)  # fmt: skip
_WORDS: Final[Mapping[type[nodes.Node], str]] = {
    nodes.Pow: "'**'",
    nodes.Scope: "'autoescape'",
    nodes.FromImport: "'from'",
    nodes.NSRef: "'set' of an attribute",
}

_CALLING = {"map": 0, "reject": 0, "select": 0, "rejectattr": 1, "selectattr": 1}
"""Filters that call a filter or a test, and the place of its name among their values."""

_INSIDES = re.compile(r"__(class|mro|base|bases|subclasses|globals|init|builtins|import)__")


def refuse(tree: nodes.Template) -> None:
    """ValueError names the first construct that templates do not have, and its line."""
    _Refusals(tree).visit(tree)


class _Refusals(NodeVisitor):
    def __init__(self, tree: nodes.Template) -> None:
        self._macros = {macro.name for macro in tree.find_all(nodes.Macro)}
        own = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        self._left_out = {*LEFT_OUT} - own - self._macros
        self._loops = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> None:
        if not isinstance(node, _NODES) or isinstance(node, nodes.Pow):
            word = _WORDS.get(type(node), repr(type(node).__name__.lower()))
            _refuse(node, f"uses {word}, which templates do not have")
        super().generic_visit(node, *args, **named)

    def visit_For(self, node: nodes.For) -> None:  # noqa: N802
        self._loops += 1
        if node.recursive or self._loops > LOOPS:
            kind = "recursive loop" if node.recursive else f"loop within {LOOPS} others"
            _refuse(node, f"has a {kind}, which templates do not have")
        self.generic_visit(node)
        self._loops -= 1

    def visit_Name(self, node: nodes.Name) -> None:  # noqa: N802
        if node.name in self._left_out:
            why = f"uses {node.name!r}, which templates do not have"
            if node.name == "namespace":
                why += ": what is set in a loop ends with its step; collect values with filters such as map, select and join"
            _refuse(node, why)
        if node.name == "range" and node.ctx == "load":
            _refuse(node, "uses the function 'range' as a value: call it")

    def visit_Call(self, node: nodes.Call) -> None:  # noqa: N802
        called = node.node
        if isinstance(called, nodes.Getattr):
            _refuse_unlisted(node, "method", called.attr, limits.METHODS)
            if called.attr == "format":
                _refuse_format(called.node, limits.BRACES)
        elif not isinstance(called, nodes.Name):
            _refuse(node, "calls a value: functions and methods are called by their names")
        elif called.name not in self._left_out:
            _refuse_unlisted(node, "function", called.name, ("range", "caller", *self._macros))
        is_known = isinstance(called, nodes.Name) and called.name not in self._left_out
        for child in node.iter_child_nodes(exclude=("node",) if is_known else ()):
            self.visit(child)

    def visit_Filter(self, node: nodes.Filter) -> None:  # noqa: N802
        _refuse_unlisted(node, "filter", node.name, limits.FILTERS)
        if node.name in _CALLING:
            kind = "filter" if node.name == "map" else "test"
            known = limits.FILTERS if node.name == "map" else limits.TESTS
            for name in node.args[_CALLING[node.name] :][:1]:
                _refuse_unlisted(node, kind, getattr(name, "value", "..."), known)
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            _refuse(node, f"gives {node.name!r} values with a star, which only calls take")
        if node.name == "format":
            _refuse_format(node.node, limits.PERCENTS)
        self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> None:  # noqa: N802
        _refuse_unlisted(node, "test", node.name, limits.TESTS)
        self.generic_visit(node)

    def visit_Mod(self, node: nodes.Mod) -> None:  # noqa: N802
        _refuse_format(node.left, limits.PERCENTS)
        self.generic_visit(node)

    def visit_Getattr(self, node: nodes.Getattr | nodes.Getitem) -> None:  # noqa: N802
        name = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        if isinstance(name, str) and _INSIDES.search(name):
            _refuse(
                node,
                f"names {name[:60]!r}: it may use the columns of its row, not Python's internals",
            )
        self.generic_visit(node)

    visit_Getitem = visit_Getattr  # noqa: N815


def _refuse(node: nodes.Node, why: str) -> NoReturn:
    raise ValueError(f"line {node.lineno} of the template {why}")


def _refuse_unlisted(node: nodes.Node, kind: str, name: Any, known: Iterable[str]) -> None:
    if name not in known:
        works = ", ".join(sorted(each for each in known if each[0].isalpha()))
        _refuse(node, f"uses {name!r}, which is not a {kind} of templates; what works: {works}")


def _refuse_format(node: nodes.Node | None, kind: re.Pattern[str]) -> None:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        try:
            limits.fields(node.value, kind)
        except SecurityError as error:
            _refuse(node, f"formats a value: {error}")
