"""An example as a new user runs it: in a copy of its folder, with a ledger of its own there."""

from pathlib import Path

from tests.support.fleet import Fleet, logs

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example(Fleet):
    """A copy of one example's folder, and `nightshift` in it."""

    def nightshift(self, *arguments: str, exit_code: int = 0, seconds: float = 400) -> str:
        """What the command printed; fails when it ended with another exit code."""
        done = self.command(*arguments, seconds=seconds)
        said = f"{done.stdout}\n{done.stderr}\n{logs(self.folder)}"
        assert done.returncode == exit_code, said
        return done.stdout
