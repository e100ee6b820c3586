"""Who works on the jobs of a ledger, as far as a reader of the ledger can tell."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nightshift.common.settings import Settings
from nightshift.producer.embedded.home import holder, say_holder


class Works(StrEnum):
    """Who keeps the jobs of a ledger going.

    `fleet`: reapers and workers of a ledger that the environment names. `run` and `serve`: one such command
    in a folder, with a fleet of its own. `nobody`: the ledger of a folder, and no such command. `pages`: the
    same, while `nightshift console` holds the folder.
    """

    FLEET = "fleet"
    RUN = "run"
    SERVE = "serve"
    NOBODY = "nobody"
    PAGES = "pages"


@dataclass(frozen=True, slots=True)
class Here:
    """Who works, and on what: the job, the pool and the engine of a `run`."""

    works: Works = Works.FLEET
    job_id: int | None = None
    pool: str | None = None
    engine_key: str | None = None

    @property
    def is_folder(self) -> bool:
        """Whether the ledger is that of a folder, where no fleet can be started by hand."""
        return self.works is not Works.FLEET

    @property
    def nobody(self) -> bool:
        """Whether no job advances."""
        return self.works in (Works.NOBODY, Works.PAGES)

    def say(self, home: Path) -> None:
        """Tells other commands in this folder; the caller holds its lock."""
        facts = {
            "works": self.works,
            "job": self.job_id,
            "pool": self.pool,
            "engine_key": self.engine_key,
        }
        say_holder(home, facts)


FLEET, NOBODY = Here(), Here(Works.NOBODY)


def here(settings: Settings, *, alone: bool) -> Here:
    """Who works on the ledger of the settings; `alone` where this very command keeps its server up."""
    if settings.database_url is not None:
        return FLEET
    if alone:
        return Here(Works.NOBODY)
    said = holder(settings.home.absolute())
    try:
        works = Works(said.get("works", Works.NOBODY))
    except ValueError:  # a word of a later release
        works = Works.RUN
    return Here(works, said.get("job"), said.get("pool"), said.get("engine_key"))
