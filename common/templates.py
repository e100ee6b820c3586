"""The sandbox of prompt templates: no way out to Python's objects, and bounds on work and memory.

Jinja's own sandbox keeps a template from Python's insides, but lets it multiply a string by ten
billion or nest loops without end. Here each rendering has a budget: what it makes is charged
before it is made, each step of a loop counts, and a clock ends the rest.
"""

import math
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, meta, nodes
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

RENDER_UNITS = 5_000_000
"""What one rendering may make: characters and list entries, all together."""

ENTRY_UNITS = 5
"""What an entry of a list costs, and what it holds beside it."""

STEP_UNITS = 10
"""What a step of a loop or a call costs beside what it makes: about a quarter of a second, if a
template does nothing else."""

RENDER_SECONDS = 2.0
"""Longest CPU time of one rendering, so that a frozen or busy machine fails no row; a usual one
takes less than a millisecond."""

NUMBER_BITS = 16_384
"""Longest whole number that a template may calculate."""

WIDEST_FIELD = 1000
"""Widest field of a format string."""

# What these make grows with the value of their whole numbers, not with the numbers' own size.
PADDING = frozenset({"ljust", "rjust", "center", "zfill", "batch", "slice", "to_bytes"})
MULTIPLYING = frozenset({"expandtabs", "indent", "tojson", "wordwrap", "join"})

_WIDE_PERCENT = re.compile(rb"%(?:\([^)]*\))?[-+ #0]*(?:\*|\d{4,}|\d*\.(?:\*|\d{4,}))")
_WIDE_BRACES = re.compile(rb"\{[^{}]+\{|\{[^{}]*:[^{}]*\d{4,}")
_WIDE_TIME = re.compile(rb"%[^A-Za-z%]*\d{4,}")
_WIDE = {
    "format": (_WIDE_PERCENT, _WIDE_BRACES),
    "format_map": (_WIDE_BRACES,),
    "strftime": (_WIDE_TIME,),
    "%": (_WIDE_PERCENT,),
}


def compiled(template: str) -> Template:
    """A template that `rendered` takes; ValueError in words when it cannot be one."""
    template_columns(template)
    return _ENVIRONMENT.from_string(template)


def rendered(template: Template, row: Mapping[str, Any]) -> str:
    """The text for a row.

    A column that the row lacks, or that is null where it is printed, is an error: the word "None"
    in a prompt would be answered as if it were the row's text. Raises whatever the row's values
    raise, and SecurityError for what a template may not do.
    """
    _budget.begin()
    return template.render(row)


@lru_cache(maxsize=256)
def template_columns(template: str) -> frozenset[str]:
    """Names a template takes from the row; ValueError in words when it is none."""
    try:
        tree = _ENVIRONMENT.parse(template)
        names = meta.find_undeclared_variables(tree)
        _refuse_reaching(tree)
        # Python has limits of its own, which only compiling meets.
        _ENVIRONMENT.from_string(template)
    except TemplateError as error:
        said = " ".join(str(error.message or error).split())
        raise ValueError(f"template does not parse: {said}") from error
    except (RecursionError, MemoryError, SyntaxError) as error:
        raise ValueError("template is nested too deeply: make it simpler") from error
    # Jinja itself looks these up only when a row gets there.
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        known = _ENVIRONMENT.filters if isinstance(node, nodes.Filter) else _ENVIRONMENT.tests
        if node.name not in known:
            raise ValueError(f"template uses {node.name!r}, which is no filter or test of Jinja")
    if any(True for _ in meta.find_referenced_templates(tree)):
        raise ValueError("template names another template; it must stand alone")
    return frozenset(names) - frozenset(_ENVIRONMENT.globals)


def _refuse_reaching(tree: nodes.Template) -> None:
    """The way to Python's insides leads over names with two underscores on both sides."""
    spoken = [node.attr for node in tree.find_all(nodes.Getattr)]
    spoken += [
        str(node.value) for node in tree.find_all(nodes.Const) if isinstance(node.value, str)
    ]
    for name in spoken:
        if re.search(r"__(class|mro|base|bases|subclasses|globals|init|builtins|import)__", name):
            raise ValueError(
                f"template names {name[:60]!r}: it may use the columns of its row, not Python's "
                "insides"
            )


# ---------------------------------------------------------------- the budget


class _Budget(threading.local):
    """What is left of one rendering; each thread renders by itself."""

    units = RENDER_UNITS
    ends_at = math.inf

    def begin(self) -> None:
        self.units = RENDER_UNITS
        self.ends_at = time.thread_time() + RENDER_SECONDS

    def charge(self, units: int) -> None:
        self.units -= units
        if self.units < 0:
            raise SecurityError(f"it makes more than {RENDER_UNITS:,} characters or steps")
        if time.thread_time() > self.ends_at:
            raise SecurityError(f"it takes longer than {RENDER_SECONDS:g} seconds")


_budget = _Budget()


def _weight(value: object) -> int:
    """Characters and entries of a value, all the way down; at most a little above what is left."""
    if isinstance(value, str | bytes | bytearray | range):
        return len(value)
    total, waiting = 0, [value]
    while waiting and total <= _budget.units:
        one = waiting.pop()
        total += ENTRY_UNITS
        if isinstance(one, str | bytes | bytearray | range):
            total += len(one)
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
    return total


def _charge_call(name: str, values: Sequence[object]) -> None:
    """Before a method, function or filter runs: what it may make, at the most."""
    _refuse_wide(name, values)
    numbers = [abs(value) for value in values if isinstance(value, int)]
    weights = [_weight(value) for value in values if not isinstance(value, int)]
    if name == "replace" and len(values) > 2:
        times = weights[0] // max(1, weights[1]) + 1 if len(weights) > 2 else weights[0]
        _budget.charge(weights[0] + times * weights[-1])
    elif name in MULTIPLYING:
        _budget.charge(math.prod(max(1, weight) for weight in [*weights, *numbers]))
    else:
        _budget.charge(sum(weights) + (sum(numbers) if name in PADDING else STEP_UNITS))


def _refuse_wide(name: str, values: Sequence[object]) -> None:
    for value in values if name in _WIDE else ():
        text = value.encode(errors="replace") if isinstance(value, str) else value
        if isinstance(text, bytes) and any(wide.search(text) for wide in _WIDE[name]):
            raise SecurityError(f"a field of a format is {WIDEST_FIELD} wide at most, and fixed")


# ---------------------------------------------------------------- the environment


class _Metered(NodeTransformer):
    """Leads whatever a template loops over, joins or puts into a list past the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through("_counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        listed = nodes.List(node.nodes, lineno=node.lineno)
        return _through("_joined", listed)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_weighed", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_weighed", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_weighed", node) if node.ctx == "load" else node


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Charges every operator, call and filter that can make much out of little."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Text and lists are charged, whole numbers are kept short."""
        if operator == "%" and isinstance(left, str | bytes):
            _refuse_wide("%", [left])
        sizes = [_weight(side) for side in (left, right) if not isinstance(side, int | float)]
        numbers = [side for side in (left, right) if isinstance(side, int)]
        if operator == "*" and sizes:
            _budget.charge(math.prod([*sizes, *map(abs, numbers)]))
        elif operator in ("*", "**") and len(numbers) == 2:
            first, second = left.bit_length(), right.bit_length()
            bits = first + second if operator == "*" else first * abs(right)
            if bits > NUMBER_BITS:
                raise SecurityError("it calculates a number of thousands of digits")
        else:
            _budget.charge(sum(sizes))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, *args: Any, **named: Any) -> Any:
        """Functions, macros and methods of the row's values."""
        values = [*args, *named.values()]
        # Jinja wraps a string's own `format`.
        receiver = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if receiver is not None and receiver is not self:
            values.insert(0, receiver)
        _charge_call(getattr(called, "__name__", ""), values)
        result = super().call(context, called, *args, **named)
        _budget.charge(_weight(result))
        return result

    def _generate(self, source: nodes.Template, *args: Any, **named: Any) -> str:
        return super()._generate(_Metered().visit(source), *args, **named)


def _metered_filter(name: str, run: Any) -> Any:
    @wraps(run)
    def metered(*args: Any, **named: Any) -> Any:
        inner = (Context, EvalContext, Environment)
        at = 1 if args and isinstance(args[0], inner) else 0
        if name == "join":
            # What another filter yields has no size until it is there.
            args = (*args[:at], list(_counted(args[at])), *args[at + 1 :])
        given = args[at:]
        _charge_call(name, [*given, *named.values()])
        result = run(*args, **named)
        _budget.charge(_weight(result))
        return result

    return metered


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _budget.charge(STEP_UNITS)
        yield value


def _joined(values: Sequence[Any]) -> str:
    _budget.charge(_weight(values))
    return "".join(map(str, values))


def _weighed(value: Any) -> Any:
    _budget.charge(_weight(value))
    return value


# With the context, Jinja leaves it alone until a row is rendered.
@pass_context
def _printed(_context: Context, value: object) -> object:
    if value is None:
        raise ValueError("it prints a column that is null (write {{ column or '' }} to allow it)")
    _budget.charge(_weight(value))
    return value


def _environment() -> _Sandbox:
    environment = _Sandbox(
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        finalize=_printed,
        # Else constants are calculated while the template is compiled, outside of any budget.
        optimized=False,
        cache_size=0,
    )
    # Random text: a row that is run again would get another prompt.
    del environment.globals["lipsum"]
    environment.filters = {
        name: _metered_filter(name, run) for name, run in environment.filters.items()
    }
    environment.filters |= {"_counted": _counted, "_joined": _joined, "_weighed": _weighed}
    return environment


_ENVIRONMENT = _environment()
