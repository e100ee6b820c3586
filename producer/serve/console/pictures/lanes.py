"""Who worked when: a lane a slot or a host, leases and loads as bars that lead to their batch. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from markupsafe import Markup

from nightshift.common.text import counted, counted_batches
from nightshift.producer.serve.console import wording
from nightshift.producer.serve.console.pictures import bars as joining
from nightshift.producer.serve.console.pictures import scales
from nightshift.producer.serve.console.pictures.bars import LOAD, OTHERS, Bar, Lanes, Place
from nightshift.producer.serve.console.pictures.scales import Span

HEIGHT = 14

LEAST_WIDTH = 15
"""Least width of a bar, in units of the stretched picture: a pixel and a half of a wide page."""

RUNNING = "w"
"""The kind of the bar of a lease that runs; those that ended have their kinds in the ledger."""

MOST_RUNNING = 8
"""Leases of a lane that run and have a bar each; more are one bar."""

SHAPES = {
    LOAD: ("load", 4),
    "r": ("released", 4),
    RUNNING: ("lease", 10),
    "d": ("done", 10),
    "f": ("failed", HEIGHT),
    "l": ("failed", HEIGHT),
}
"""Class and height of each kind, in the order in which they are drawn."""

WORDS = {"r": "released", RUNNING: "at work", "f": "failed", "l": "lost"}


def draw(lanes: Lanes, running: Mapping[Place, Sequence[Bar]], span: Span) -> Markup:
    """The lanes, with the bars of what runs now; nothing where no slot ever had a batch."""
    places = sorted({*lanes.bars, *running}, key=_order)
    if not places:
        return Markup("")
    names = shown_hosts({host for host, _ in places})
    drawn = [
        _lane(
            _name(place, names[place[0]]),
            [*lanes.bars.get(place, ()), *_few(running.get(place, ()))],
            span,
            is_sampled=lanes.is_sampled,
        )
        for place in places
    ]
    return Markup(
        '<div class="lanes{many}" id="lanes" role="group" tabindex="0" aria-label="{said}">{lanes}</div>'
        '<div class="lane-clock">{clock}</div>{legend}'
    ).format(
        many=" many" if len(places) > 16 else "",
        said=f"Who worked when: {len(places):,} {'hosts' if lanes.by_host else 'slots'}",
        lanes=Markup("").join(drawn),
        clock=scales.clock(span),
        legend=scales.legend(
            _legend(
                {bar.kind for bars in (*lanes.bars.values(), *running.values()) for bar in bars}
            )
        ),
    )


def _few(bars: Sequence[Bar]) -> Sequence[Bar]:
    return bars if len(bars) <= MOST_RUNNING else joining.merged(bars, float("inf"))


def _lane(name: Markup, bars: Sequence[Bar], span: Span, *, is_sampled: bool) -> Markup:
    shapes = []
    for kind, (drawn, height) in SHAPES.items():
        of_kind = [_bar(bar, span, is_sampled=is_sampled) for bar in bars if bar.kind == kind]
        if of_kind:
            shapes.append(f'<g class="{drawn}" stroke-width="{height}">{"".join(of_kind)}</g>')
    # A sample of the leases does not show how long a lane was busy.
    share = min(joining.busy_seconds(bars) / span.seconds, 1.0)
    busy = "" if is_sampled else f"{100 * share:.0f} %"
    return Markup(
        '<div class="lane">{name}<svg aria-hidden="true" viewBox="0 0 {wide} {height}" '
        'preserveAspectRatio="none">{bars}</svg><span class="busy">{busy}</span></div>'
    ).format(
        name=name,
        wide=scales.WIDE,
        height=HEIGHT,
        bars=Markup("".join(shapes)),  # noqa: S704 - numbers and words of ours, see `_bar`
        busy=busy,
    )


def _bar(bar: Bar, span: Span, *, is_sampled: bool) -> str:
    """The bar as SVG; plain text, since there are two thousand of them. Its words are ours, the rest is numbers."""
    left = min(span.x(bar.began), scales.WIDE - LEAST_WIDTH)
    width = max(span.x(bar.ended) - left, LEAST_WIDTH)
    path = f'<path d="M{left} {HEIGHT // 2}h{width}"/>'
    if bar.kind == LOAD:
        return path
    # No stop for the keyboard: the page has a field for the number of a batch. The page of the job
    # leads on from this address, which is short.
    return f'<a href="?batch={bar.seq}" tabindex="-1"><title>{_title(bar, is_sampled=is_sampled)}</title>{path}</a>'


def _title(bar: Bar, *, is_sampled: bool) -> str:
    """What a bar stands for, in a few words: there are many."""
    if is_sampled and bar.batches > 1:
        return f"batch {bar.seq} and others{f' {WORDS[bar.kind]}' if bar.kind in WORDS else ''}"
    which = f"batch {bar.seq}" if bar.batches == 1 else f"{counted_batches(bar.batches)}"
    word = f" {WORDS[bar.kind]}" if bar.kind in WORDS else ""
    failed = f", {bar.failed:,} failed" if bar.failed else ""
    return f"{which}{word}, {counted(bar.rows, 'row')}{failed}"


def _order(place: Place) -> tuple[bool, str, int]:
    host, slot = place
    return place == OTHERS, host, -1 if slot is None else slot


def shown_hosts(hosts: Collection[str]) -> dict[str, str]:
    """Each host by its name without the domain, where that tells them apart."""
    short = {host: host.partition(".")[0] for host in hosts}
    is_clear = len(set(short.values())) == len(short) and not any(map(str.isdigit, short.values()))
    return short if is_clear else {host: host for host in hosts}


def _name(place: Place, shown: str) -> Markup:
    host, slot = place
    if place == OTHERS:
        return Markup('<span class="host">other hosts</span><span></span>')
    return Markup('<span class="host" title="{}">{}</span><span>{}</span>').format(
        host, wording.shortened(shown, 14), "" if slot is None else f"/{slot}"
    )


def _legend(kinds: Iterable[str]) -> list[tuple[str, object]]:
    found = set(kinds)
    items = [
        ("done", "done", {"d"}),
        ("lease", "at work", {RUNNING}),
        ("worst", "failed or lost", {"f", "l"}),
        ("thin", "released", {"r"}),
        ("load", "engine loads", {LOAD}),
    ]
    return [*((kind, words) for kind, words, of in items if of & found), ("idle", "idle")]
