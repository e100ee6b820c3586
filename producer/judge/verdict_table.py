"""A judge's verdict as a rich table."""

from rich.console import Group, RenderableType
from rich.text import Text

from nightshift.producer.judge.judge import Verdict
from nightshift.producer.judge.scores import ScoreStatistics
from nightshift.producer.views.tables import fact_grid


def render(found: Verdict) -> RenderableType:
    """Mean, standard errors, interval, how many rows that rests on, and the answers."""
    table = fact_grid()
    sample, scores = found.sample, found.scores
    title = Text(f"verdict on job {sample.job}", "bold")
    if scores is None:
        return Group(title, Text("there is no score: the judge's job did not come to its end"))
    table.add_row("score", _score(scores))
    if scores.interval is not None:
        low, high = scores.interval
        table.add_row("95 %", f"{low:.4g} to {high:.4g}, for rows like these")
    if scores.standard_error_here is not None and sample.rows < sample.population:
        within = (
            f"± {scores.standard_error_here:.3g} as the mean of all {sample.population:,} answers"
        )
        table.add_row("this job", within)
    rows = Text(
        f"{scores.count:,} scored of {sample.rows:,} judged, {sample.population:,} answered"
    )
    if scores.unscored:
        rows.append(f", {scores.unscored:,} without a score in {found.column}", "red")
    if scores.failed:
        rows.append(f", {scores.failed:,} failed", "red")
    table.add_row("rows", rows)
    if scores.answers:
        answers = ", ".join(f"{answer} {count:,}" for answer, count in _most(scores))
        table.add_row("answers", Text(answers))
    return Group(title, table)


def _score(scores: ScoreStatistics) -> Text:
    if not scores.count:
        return Text("none: no answer of the judge is a score", "red")
    text = Text(f"{scores.mean:.4g}", "bold")
    if scores.standard_error is not None:
        text.append(f" ± {scores.standard_error:.3g} (standard error)", "not bold")
    return text


def _most(scores: ScoreStatistics) -> list[tuple[str, int]]:
    return [(answer[:60], count) for answer, count in list(scores.answers.items())[:12]]
