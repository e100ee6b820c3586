"""A judge's verdict, for people as a rich table, and for machines as JSON."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.text import counted
from nightshift.producer.judge.judged_rows import JudgedSample
from nightshift.producer.judge.scores import ScoreStatistics
from nightshift.producer.views.cells import fact_grid

MOST_ANSWERS = 12
"""Different answers that stand in the table."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's job at its end, and its scores; None where it did not come to its end."""

    sample: JudgedSample
    job: Job
    exit_code: int
    column: str = ""
    scores: ScoreStatistics | None = None

    def as_json(self) -> dict[str, Any]:
        """For machines; null where there is no number."""
        result: dict[str, Any] = {
            "job": self.sample.job,
            "judge": self.job.id,
            "status": str(self.job.state),
            "answered": self.sample.population,
            "judged": self.sample.rows,
            "column": self.column or None,
        }
        scores = self.scores
        if scores is None:
            return result
        return result | {
            "scored": scores.count,
            "unscored": scores.unscored,
            "failed": scores.failed,
            "mean": scores.mean if scores.count else None,
            "deviation": scores.deviation,
            "standard_error": scores.standard_error,
            "standard_error_here": scores.standard_error_here,
            "interval_95": scores.interval,
            "answers": scores.answers,
        }


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
        within = f"± {scores.standard_error_here:.3g} as the mean of all {counted(sample.population, 'answer')}"
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
        most = list(scores.answers.items())[:MOST_ANSWERS]
        answers = ", ".join(f"{answer[:60]} {count:,}" for answer, count in most)
        table.add_row("answers", Text(answers))
    return Group(title, table)


def _score(scores: ScoreStatistics) -> Text:
    if not scores.count:
        return Text("none: no answer of the judge is a score", "red")
    text = Text(f"{scores.mean:.4g}", "bold")
    if scores.standard_error is not None:
        text.append(f" ± {scores.standard_error:.3g} (standard error)", "not bold")
    return text
