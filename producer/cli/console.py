"""A console on which text of users can never steer the terminal; Rich is imported with it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nightshift.common.text import printable


class SafeConsole(Console):
    """Rich removes some control characters from text, but not the one that begins a sequence."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Makes text safe; the sequences of Rich itself are control segments, or styles."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
