"""What of a job is in its table of a lake, in words and for machines, as the ledger knows it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nightshift.common.ledger import Connection
from nightshift.common.ledger.jobs import jobs, messages, table_commits
from nightshift.common.ledger.jobs.table_commits import TableState
from nightshift.common.text import counted
from nightshift.producer.views.fact import Fact

if TYPE_CHECKING:
    from nightshift.common.spec.tables import TableSpec


@dataclass(frozen=True, slots=True)
class InTable:
    """The table of a job, and what became of its commits."""

    table: "TableSpec"
    state: TableState
    is_over: bool

    @property
    def text(self) -> str:
        """One phrase: what is there, and why a commit is not."""
        last = self.state.commit
        if last is None:
            nothing = f"{self.table.title}: nothing of this job"
            return nothing if self.is_over else f"{nothing} before all of its rows are done"
        what = f"{counted(self.state.rows, 'row')} of {counted(self.state.files, 'part')}"
        said = f"{self.table.title}: {what}"
        if self.state.version is not None:
            said += f" since version {self.state.version}"
        if last.state == "open":
            said += f"; commit {last.number} is under way"
        if last.state == "refused":
            said += f"; commit {last.number} was refused: {last.reason}"
        return said

    @property
    def fact(self) -> Fact:
        """The phrase as a fact."""
        last = self.state.commit
        meaning = "the rows of the job in the table that it writes"
        is_refused = last is not None and last.state == "refused"
        return Fact("table", self.text, meaning=meaning, warns=is_refused)

    @property
    def as_json(self) -> dict[str, Any]:
        """The object `table` of `status JOB --json` and of the manifest."""
        last, at = self.state.commit, self.state.at
        return {
            "format": self.table.format,
            "name": self.table.title,
            "mode": self.table.mode,
            "version": self.state.version,
            "parts": self.state.files,
            "rows": self.state.rows,
            "commit": None if last is None else last.number,
            "state": None if last is None else last.state,
            "reason": None if last is None else last.reason,
            "at": None if at is None else at.isoformat(),
        }


def of_job(connection: Connection, job_id: int, whole: bool) -> dict[str, InTable]:
    """Return the `table` of a job, with its `whole` messages or with public ones; nothing for a job without one."""
    state = table_commits.status(connection, job_id)
    if whole and state is not None and state.commit is not None:
        reason = messages.whole(connection, job_id).text(state.commit.reason)
        state = replace(state, commit=replace(state.commit, reason=reason))
    job = None if state is None else jobs.get(connection, job_id)
    if state is None or job is None or job.spec.output.table is None:
        return {}
    return {"table": InTable(job.spec.output.table, state, job.state.over)}
