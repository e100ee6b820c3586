"""A live view in a notebook: one output of the cell, which each look replaces."""

import io
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType

FORMAT = '<pre style="white-space: pre; line-height: normal; font-family: monospace">{code}</pre>'


class CellView:
    """Shows a view in the cell that runs. The output goes away at the end, as that of a terminal does.

    Rich's own live view needs ipywidgets, which many notebooks lack, and leaves nothing in a notebook
    that is executed without a browser.
    """

    def __init__(self, view: RenderableType, console: Console) -> None:
        self._view, self._width = view, console.width
        self._cell: Any = None
        self._shown = ""

    def __enter__(self) -> Self:
        # IPython is there, since Rich found a notebook.
        from IPython.display import display

        self._cell = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def refresh(self) -> None:
        """Draws the view anew, if it changed."""
        console = Console(record=True, file=io.StringIO(), width=self._width, force_jupyter=False)
        console.print(self._view)
        page = console.export_html(code_format=FORMAT, inline_styles=True, clear=False)
        if page != self._shown:
            self._shown = page
            self._cell.update({"text/html": page, "text/plain": console.export_text()}, raw=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cell.update({"text/plain": ""}, raw=True)
