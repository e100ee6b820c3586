"""The sandbox of prompt templates: no way out to Python's objects, and bounds on work and memory.

Jinja's own sandbox keeps a template from Python's internals, but allows a text times ten billion, and nested loops
without end. Here a template that uses what can be expensive is refused before it runs (`refusals.py`), and every value
that the others make is charged to the budget of the row (`budget.py`, `limits.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, meta, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from nightshift.common.templates import limits
from nightshift.common.templates.budget import Budget
from nightshift.common.templates.refusals import LEFT_OUT, refuse

TEMPLATE_TOKENS = 5000
"""Most tokens of Jinja in the templates of a job: some take the square of their number to compile, 0.2 s at most."""

QUOTED_CHARACTERS = 60
"""Characters of a template's line that a message quotes."""

READ_CHARACTERS = 20
"""Characters that a comparison reads for one unit: a comparison makes nothing."""


def refuse_large(templates: Iterable[str]) -> None:
    """ValueError for templates that take long to compile; static text takes no time. What does not parse is left to
    `compiled`.
    """
    with suppress(TemplateError):
        kinds = (kind for template in templates for _, kind, _ in _ENVIRONMENT.lex(template))
        tokens = (kind for kind in kinds if kind not in ("data", "whitespace", "comment"))
        if next(islice(tokens, TEMPLATE_TOKENS, None), None) is not None:
            raise ValueError(
                f"the templates have more than {TEMPLATE_TOKENS:,} tokens of Jinja (tags, names, operators): make "
                "them shorter"
            )


def compiled(template: str) -> Template:
    """A template for `rendered_all`; ValueError says why a text is no template here: it is none of Jinja, or uses what
    templates do not have.
    """
    with _one_sentence():
        tree = _ENVIRONMENT.parse(template)
        refuse(tree)
        # Limits of Python itself show only when the template is compiled.
        code = _ENVIRONMENT.compile(_Metered().visit(tree))
        return Template.from_code(_ENVIRONMENT, code, {})


def rendered_all(templates: Iterable[Template], row: Mapping[str, Any]) -> Iterator[str]:
    """The text of each template for a row, each made when it is asked for; together they have the budget of
    one row.

    A column that the row lacks, or that is null where it is printed, is an error: the word "None"
    in a prompt would be answered as if it were the row's text. Raises whatever the row's values
    raise, and SecurityError for what a template must not do.
    """
    budget = Budget()
    for template in templates:
        yield rendered(template, row, budget)


def rendered(template: Template, row: Mapping[str, Any], budget: Budget) -> str:
    """The text of a template for a row, charged to a budget; raises as `rendered_all`."""
    context: Any = template.new_context({**row, "range": safe_range}, shared=True)
    context.budget = budget
    return "".join(template.root_render_func(context))


def template_columns(template: str) -> frozenset[str]:
    """Names that a template takes from the row; ValueError says why a text is no template of Jinja."""
    return frozenset(columns_in_order(template))


@lru_cache(maxsize=64)
def columns_in_order(template: str) -> tuple[str, ...]:
    """The names that a template takes from the row, in the order in which the text has them first."""
    with _one_sentence():
        tree = _JINJA.parse(template)
        generator = meta.TrackingCodeGenerator(_JINJA)
        generator.optimizer = None  # else it calculates constants
        generator.visit(tree)
    wanted = generator.undeclared_identifiers.difference(LEFT_OUT, ("range",))
    names = [node.name for node in tree.find_all(nodes.Name) if node.name in wanted]
    return tuple(dict.fromkeys(names))


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


# ---------------------------------------------------------------- the environment


class _Context(Context):
    """The variables of one rendering, and the budget that it is charged to."""

    budget: Budget


class _Metered(NodeTransformer):
    """Leads what a template makes past the budget. Static text is charged only where it may be repeated."""

    def __init__(self) -> None:
        self._repeated = 0

    def _visit_repeated(self, node: Any) -> Any:
        self._repeated += 1
        self.generic_visit(node)
        self._repeated -= 1
        return node

    visit_Macro = visit_CallBlock = _visit_repeated  # noqa: N815

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self._visit_repeated(node)
        node.iter = _through("_steps", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node | list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        static = sum(len(each.data) for each in node.nodes if isinstance(each, nodes.TemplateData))
        if not self._repeated or not static:
            return node
        charge = _through("_charged", nodes.Const(static, lineno=node.lineno))
        return [nodes.ExprStmt(charge, lineno=node.lineno), node]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_concatenated", nodes.Tuple(node.nodes, "load", lineno=node.lineno))

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        return node if is_target else _through("_made", node)

    visit_Tuple = visit_Dict = visit_List  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _through("_sliced", node.node, *(each or nodes.Const(None) for each in ends))

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.dyn_args is not None:
            # Python makes a tuple of them before the call: of a text one with each character.
            node.dyn_args = _through("_steps", node.dyn_args, nodes.Const(limits.PIECE_UNITS))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through("_read", node.expr)
        for operand in node.ops:
            operand.expr = _through("_read", operand.expr)
        return node


def _through(name: str, node: Any, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Charges operators and calls to the budget of the rendering."""

    context_class = _Context
    intercepted_binops = frozenset({"*", "%", "//", "+", "-"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Text, lists and numbers."""
        return limits.operated(context.budget, operator, self.binop_table[operator], left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **named: Any) -> Any:
        """`range`, macros, and methods of the row's values."""
        uncharged = super().call

        def call(_: Any, /, *args: Any, **named: Any) -> Any:
            return uncharged(context, called, *args, **named)

        if isinstance(called, Macro | Undefined) or called is safe_range:
            return limits.Bound().run(context.budget, call, None, *args, **named)
        # Jinja wraps a string's own `format`.
        method = getattr(called, "__wrapped__", called)
        receiver, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if receiver is None or name not in limits.METHODS:
            raise SecurityError(
                f"it calls {name or type(called).__name__!r}, which is not a method of templates"
            )
        return limits.METHODS[name].run(context.budget, call, receiver, *args, **named)


def _metered(run: Callable[..., Any], name: str, bound: limits.Bound) -> Callable[..., Any]:
    """A filter or a test of Jinja that is charged."""

    @pass_context
    def metered(context: Any, value: Any, /, *args: Any, **named: Any) -> Any:
        def call(value: Any, /, *args: Any, **named: Any) -> Any:
            return run(name, value, args, named, context)

        return bound.run(context.budget, call, value, *args, **named)

    return metered


def _internal(run: Callable[..., Any]) -> Callable[..., Any]:
    return pass_context(lambda context, *values: run(context.budget, *values))


def _read_by_a_comparison(budget: Budget, value: Any) -> Any:
    budget.charge(1 + budget.weight(value) // READ_CHARACTERS)
    return value


# A function with the context is called only when a row is rendered.
@pass_context
def _printed(context: Any, value: object) -> object:
    if isinstance(value, str):
        context.budget.charge(len(value))
        return value
    if value is None:
        raise ValueError("it prints a column that is null (write {{ column or '' }} to allow it)")
    return context.budget.text(value)


def _environment(jinja: ImmutableSandboxedEnvironment) -> _Sandbox:
    environment = _Sandbox(
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        finalize=_printed,
        # Else constants are calculated while the template is compiled, without a budget.
        optimized=False,
        cache_size=0,
    )
    environment.globals.clear()
    environment.filters = {
        **{name: _metered(jinja.call_filter, name, each) for name, each in limits.FILTERS.items()},
        "_charged": _internal(Budget.charge),
        "_concatenated": _internal(limits.concatenated),
        "_made": _internal(Budget.made),
        "_read": _internal(_read_by_a_comparison),
        "_sliced": _internal(limits.sliced),
        "_steps": _internal(Budget.steps),
    }
    environment.tests = {
        name: jinja.tests[name] if each is None else _metered(jinja.call_test, name, each)
        for name, each in limits.TESTS.items()
    }
    return environment


_JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, finalize=_printed)
"""Jinja's own filters and tests, also those that templates do not have, which a stored job may use."""
_JINJA.globals.clear()

_ENVIRONMENT = _environment(_JINJA)
