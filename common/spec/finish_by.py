"""`limits.finish_by`: a time of day, a date, a timestamp or a duration becomes one moment."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

import durationpy

FORMS = (
    "a time such as 06:00, a date such as 2026-12-24, a timestamp such as 2026-12-24T06:00+01:00, or "
    "a duration such as 8h or 90m"
)
"""What may be written, for messages."""

LONGEST = timedelta(days=3650)
"""A later deadline is a slip of the pen."""

LAST_YEAR = 9998
"""A moment after it may be one of the year 10000 on another clock, and no `datetime` is."""

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_DURATION = re.compile(r"(\d+(\.\d+)?[wdhms])+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def check(text: str) -> None:
    """ValueError with one sentence where nothing can be made of the text, at any time."""
    _read(text.strip(), datetime(2026, 1, 1, tzinfo=UTC), UTC)


def moment(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The moment that a text means, with the offset from UTC that the submitter's clock has then.

    A time of day is the next one, a date is its end, a duration counts from `now`, which knows its
    offset. `zone` is the submitter's, None for that of this machine. A time of day that the clocks
    skip is later by the hour that is skipped; of one that comes twice the first counts. ValueError
    with one sentence for a text of another form, and for a moment that has passed.
    """
    found = meaning(text, now, zone)
    if found <= now:
        raise ValueError(f"{text} has passed: it was {length(now - found)} ago")
    return found


def meaning(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """As `moment`, of a moment that may have passed, too."""
    return _read(text.strip(), now, zone)


def length(span: timedelta) -> str:
    """A length of time in days, hours and minutes; the two largest of them."""
    minutes = max(1, round(span.total_seconds() / 60))
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [(days, "d"), (hours, "h"), (rest, "min")]
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def _read(text: str, now: datetime, zone: tzinfo | None) -> datetime:
    if _DURATION.fullmatch(text):
        return _after(now, text, zone)
    if clock := _CLOCK.fullmatch(text):
        return _next(now, text, int(clock[1]), int(clock[2]), zone)
    try:
        found = datetime.fromisoformat(text)
        if _DATE.fullmatch(text):
            found += timedelta(days=1)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time: give {FORMS}") from error
    if found.year > LAST_YEAR:
        raise ValueError(f"{text} is too far away: the last year is {LAST_YEAR}")
    return _local(found, zone) if found.tzinfo is None else found


def duration(text: str) -> timedelta:
    """The length of a duration such as 8h or 90m. Raises ValueError where the text is none, or is not above 0
    and up to ten years.
    """
    try:
        found: timedelta = durationpy.from_str(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no duration: give one such as 8h or 90m") from error
    if not timedelta() < found <= LONGEST:
        raise ValueError(f"{text} is no length of time: give one above 0 and up to ten years")
    return found


def _after(now: datetime, text: str, zone: tzinfo | None) -> datetime:
    return (now.astimezone(UTC) + duration(text)).astimezone(zone)


def _next(now: datetime, text: str, hour: int, minute: int, zone: tzinfo | None) -> datetime:
    if hour > 23 or minute > 59:
        raise ValueError(f"{text} is no time of day: give one from 00:00 to 23:59")
    today = now.astimezone(zone).date()
    days = (today, today + timedelta(days=1))
    found = [_local(datetime.combine(day, time(hour, minute)), zone) for day in days]
    return found[0] if found[0] > now else found[1]


def _local(wall: datetime, zone: tzinfo | None) -> datetime:
    """The moment at which the submitter's clock shows this."""
    first, second = (
        (each.astimezone() if zone is None else each.replace(tzinfo=zone)).astimezone(UTC)
        for each in (wall, wall.replace(fold=1))
    )
    shown = first.astimezone(zone)
    if shown.replace(tzinfo=None) == wall:
        return shown
    # The clocks skip this time. Which of the two is by the offset from before the change, and so the later one,
    # differs between zones and the clock of the machine.
    return max(first, second).astimezone(zone)
