"""The sandbox of prompt templates: no way out to Python's objects, and bounds on work and memory.

Jinja's own sandbox keeps a template from Python's internals, but allows a string times ten billion,
and nested loops without end. Here a template has the filters and methods of a list, each row has a budget
(`common/templates/budget.py`), and what each call makes is charged to the budget (`common/templates/limits.py`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial, wraps
from typing import Any, NoReturn

from jinja2 import StrictUndefined, Template, TemplateError, meta, nodes
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from nightshift.common.templates import budget, limits
from nightshift.common.templates.budget import charge, counted, paid, weight

QUOTED_CHARACTERS = 60
"""Characters of a template's line that a message quotes."""

COMPARED_CHARACTERS = 20
"""Characters of a comparison for one unit: a look at them makes nothing."""

NO_NAMESPACE = (
    "'namespace', which templates do not have: what is set in a loop ends with its step; collect values with "
    "filters such as map, select and join"
)

_INSIDES = re.compile(r"__(class|mro|base|bases|subclasses|globals|init|builtins|import)__")


@lru_cache(maxsize=256)
def compiled(template: str) -> Template:
    """A template for `rendered`; ValueError says why a text is no template here: it is none of Jinja, or uses what
    templates do not have.
    """
    with _one_sentence():
        tree = _JINJA.parse(template)
        _refuse_reaching(tree)
        _refuse_unlisted(tree)
        template_columns(template)
        # Limits of Python itself show only when the template is compiled.
        found = _ENVIRONMENT.from_string(template)
        # Jinja's chained mapping costs a rendering of a short template half of its time.
        found.globals = dict(found.globals)
        return found


def rendered(template: Template, row: Mapping[str, Any]) -> str:
    """The text for a row, with a budget of its own; `rendered_all` raises the same."""
    (text,) = rendered_all([template], row)
    return text


def rendered_all(templates: Iterable[Template], row: Mapping[str, Any]) -> Iterator[str]:
    """The text of each template for a row, each made when it is asked for; together they have the budget of
    one row.

    A column that the row lacks, or that is null where it is printed, is an error: the word "None"
    in a prompt would be answered as if it were the row's text. Raises whatever the row's values
    raise, and SecurityError for what a template must not do.
    """
    budget.begin()
    for template in templates:
        yield template.render(row)


@lru_cache(maxsize=256)
def template_columns(template: str) -> frozenset[str]:
    """Names that a template takes from the row; ValueError says why a text is no template of Jinja."""
    with _one_sentence():
        tree = _JINJA.parse(template)
        _refuse_reaching(tree)
        names = meta.find_undeclared_variables(tree)
        if any(True for _ in meta.find_referenced_templates(tree)):
            raise ValueError("template names another template; it must stand alone")
    return frozenset(names) - frozenset(_ENVIRONMENT.globals)


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except TemplateSyntaxError as error:
        message = " ".join(str(error.message or error).split())
        lines = (error.source or "").splitlines()
        where = f"line {error.lineno}"
        if 0 < error.lineno <= len(lines):
            where += f", {lines[error.lineno - 1].strip()[:QUOTED_CHARACTERS]!r}"
        raise ValueError(f"template does not parse: {message} ({where})") from error
    except TemplateError as error:
        message = " ".join(str(error.message or error).split())
        raise ValueError(f"template does not parse: {message}") from error
    except (RecursionError, MemoryError, SyntaxError) as error:
        raise ValueError("template is nested too deeply: make it simpler") from error


def columns_in_order(template: str) -> list[str]:
    """The names that a template takes from the row, in the order in which the text has them first."""
    wanted = template_columns(template)
    tree = _ENVIRONMENT.parse(template)
    found = [node.name for node in tree.find_all(nodes.Name) if node.name in wanted]
    return list(dict.fromkeys(found))


def _refuse_unlisted(tree: nodes.Template) -> None:
    """Refuses what a rendering would: Jinja itself looks names up only when a row is rendered."""
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        kind = "filter" if isinstance(node, nodes.Filter) else "test"
        _refuse_name(kind, node.name, node.lineno)
        named = node.args[0] if kind == "filter" and node.args else None
        if isinstance(named, nodes.Const) and node.name in _NAMES:
            _refuse_name(_NAMES[node.name], named.value, node.lineno)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _LEFT_OUT:
            _refuse_name("method", call.node.attr, call.lineno)
        if isinstance(call.node, nodes.Name) and call.node.name == "namespace":
            raise ValueError(f"{_line(call.lineno)} uses {NO_NAMESPACE}")
    if (reference := tree.find(nodes.NSRef)) is not None:
        raise ValueError(
            f"{_line(reference.lineno)} sets an attribute, which only namespaces have, and uses {NO_NAMESPACE}"
        )


def _line(number: int) -> str:
    return f"line {number} of the template"


def _refuse_name(kind: str, name: object, line: int) -> None:
    known = {"filter": limits.FILTERS, "test": _ENVIRONMENT.tests, "method": limits.METHODS}[kind]
    if name not in known:
        raise ValueError(
            f"{_line(line)} uses {name!r}, which is not a {kind} of templates; {_what_works(known)}"
        )


def _what_works(names: Iterable[str]) -> str:
    return f"what works: {', '.join(sorted(name for name in names if name[0].isalpha()))}"


_NAMES = {"map": "filter", "reject": "test", "select": "test"}
"""Filters whose first value may be the name of another one."""

_VALUES = (str, bytes, dict, list, tuple, int, float, datetime, timedelta, Decimal)
_LEFT_OUT = {
    name for kind in _VALUES for name in dir(kind) if not name.startswith("_")
} - limits.METHODS.keys()


def _refuse_reaching(tree: nodes.Template) -> None:
    """Refuses names with two underscores on both sides, which lead to Python's internals."""
    names: list[tuple[object, int]] = [
        (node.attr, node.lineno) for node in tree.find_all(nodes.Getattr)
    ]
    arguments: list[nodes.Node] = [node.arg for node in tree.find_all(nodes.Getitem)]
    for node in tree.find_all(nodes.Filter):
        if node.name in ("attr", "map"):
            arguments += [*node.args, *(each.value for each in node.kwargs)]
    names += [(node.value, node.lineno) for node in arguments if isinstance(node, nodes.Const)]
    for name, line in names:
        if isinstance(name, str) and _INSIDES.search(name):
            raise ValueError(
                f"{_line(line)} names {name[:60]!r}: it may use the columns of its row, not Python's insides"
            )


# ---------------------------------------------------------------- the environment


class _Metered(NodeTransformer):
    """Charges the budget for what a template loops over, joins, prints or lists."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through("_counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        listed = nodes.List(node.nodes, lineno=node.lineno)
        return _through("_joined", listed)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return _through("_weighed", nodes.Const(node.data, lineno=node.lineno))

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_weighed", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_weighed", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through("_compared", node.expr)
        for operand in node.ops:
            operand.expr = _through("_compared", operand.expr)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_weighed", node) if node.ctx == "load" else node


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Charges every operator, call and filter that can make much out of little."""

    intercepted_binops = frozenset({"*", "**", "%", "//", "+"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Text, lists and numbers."""
        return limits.operated(operator, self.binop_table[operator], left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """Functions, macros and methods of the row's values."""
        uncharged = partial(super().call, context, called)
        # Jinja wraps a string's own `format`.
        receiver = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if receiver is None:
            if called is dict:
                # Values with equal hashes take the square of the time: the clock is read on the way.
                args = tuple(counted(one) if isinstance(one, list | tuple) else one for one in args)
            return limits.charged(limits.FREE, uncharged, args, named)
        method = limits.METHODS.get(called.__name__)
        if method is None:
            raise SecurityError(f"{called.__name__} is not a method of templates")
        return limits.charged(
            method, lambda _, *values, **rest: uncharged(*values, **rest), (receiver, *args), named
        )

    def _generate(self, source: nodes.Template, *args: Any, **named: Any) -> str:
        return super()._generate(_Metered().visit(source), *args, **named)


def _metered_filter(run: Any, call: limits.Call) -> Any:
    @wraps(run)
    def metered(*args: Any, **named: Any) -> Any:
        inner = (Context, EvalContext, Environment)
        at = 1 if args and isinstance(args[0], inner) else 0
        return limits.charged(call, partial(run, *args[:at]), args[at:], named)

    return metered


def _joined(values: Sequence[Any]) -> str:
    return "".join(map(limits.as_text, paid(values)))


def _compared(value: Any) -> Any:
    """A side of a comparison, which looks at characters and makes none."""
    charge(weight(value) // COMPARED_CHARACTERS)
    return value


# A function with the context is called only when a row is rendered.
@pass_context
def _printed(_context: Context, value: object) -> object:
    if value is None:
        raise ValueError("it prints a column that is null (write {{ column or '' }} to allow it)")
    return paid(value if isinstance(value, str) else limits.as_text(value))


def _no_namespace(*_: object, **__: object) -> NoReturn:
    raise SecurityError(f"it uses {NO_NAMESPACE}")


def _environment() -> _Sandbox:
    environment = _Sandbox(
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        finalize=_printed,
        # Else constants are calculated while the template is compiled, without a budget.
        optimized=False,
        cache_size=0,
    )
    # Makes random text: a row that runs again would get another prompt.
    del environment.globals["lipsum"]
    # One that holds others twice, step by step, is small in memory and prints as gigabytes. The name stays taken, so
    # that a job that was stored with it reads no column of this name.
    environment.globals["namespace"] = _no_namespace
    environment.filters = {
        name: _metered_filter(environment.filters[name], call)
        for name, call in limits.FILTERS.items()
    }
    environment.filters |= {
        "_compared": _compared,
        "_counted": counted,
        "_joined": _joined,
        "_weighed": paid,
    }
    return environment


def _jinja() -> _Sandbox:
    """Jinja's own names, for a look at a template that is not rendered: nothing is calculated."""
    environment = _Sandbox()
    environment.intercepted_binops = frozenset(environment.default_binop_table)
    environment.filters = dict.fromkeys(environment.filters, lambda *_, **__: "")
    environment.globals.clear()  # every free name is one that the row may have
    return environment


_ENVIRONMENT = _environment()
_JINJA = _jinja()
