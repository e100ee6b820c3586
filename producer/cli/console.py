"""A console that prints what users wrote as it reads, never as a command to the terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nightshift.common.text import printable


class PlainConsole(Console):
    """Rich takes some control characters out of text, but not the one that begins a sequence."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Rich's own sequences are segments of their own, or styles: only text is looked at."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
