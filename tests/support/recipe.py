"""A page of docs/ as a reader follows it: its files are written, its commands run, and what the page
says that one sees is compared with what was seen.

In a page, a block of `sh` is run by bash, block by block in one folder; what a block exports, and the
folder that it changes to, hold for the blocks below. The title of a block says what it is:

- `yaml`, `python`, `json`, `csv`, … with a title: a file of this name.
- `sh` whose title begins with BACKGROUND: runs on beside the blocks below, until the test is over. Where
  the title goes on with `, on NAME`, its processes find that the machine is called NAME.
- `sh` with the title AGAIN: a look that a reader takes again, until the `text` below was printed.
- `python` whose title is CELL: a cell of one notebook, whose output is what it printed and its last value.
- any block whose title begins with NOT_RUN: is left out. The rest of the title is the reason.
- `text` below a block of `sh` or a cell: lines that the block printed, in this order. A line of `…` stands for any
  lines, and `…` within a line for any characters. Counts of rows are the same (COUNTS); other numbers may be
  others.

The host of the repository shows no titles: what stands above a block says the same (`told_above`).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from tests.support import homes
from tests.support.example import Example
from tests.support.fleet import logs, wait_until

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
BACKGROUND = "in another terminal"
CELL = "in a notebook"
AGAIN = "again, until it shows this"
NOT_RUN = "not run here: "
COUNTS = re.compile(r"^(rows|ok)\b|\brows in\b|\bresults in\b|\bin all:|done, |failed")
"""A line of which the numbers are counts of rows."""
NUMBER = r"\d+(?:[.,:]\d+)*"
NO_COUNT = re.compile(
    rf"(?<=\bjob ){NUMBER}|{NUMBER}(?= ?(?:%|(?:ms|s|min|h|rows/s|[kMGT]i?B)\b))|\b\d+(?::\d+)+\b"
)
"""What is no count in such a line: a job's number, a time, a rate, a size."""
SECONDS = 900
"""How long one block may take, on a machine with much else to do."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: its language, its title or "", its text."""

    language: str
    title: str
    text: str

    @property
    def is_run(self) -> bool:
        if self.title.startswith(NOT_RUN):
            return False
        return self.language == "sh" or self.title == CELL


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in its order."""
    for token in MarkdownIt().parse(page):
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="([^"]*)"', rest)
            yield Block(language, title.group(1) if title else "", token.content)


def told_above(page: str) -> Iterator[tuple[str, str]]:
    """What a block with a title is (the name of a file, "terminal", "again", "notebook", "not run"), and the
    paragraph above the block, "" where another block stands there.
    """
    lines = page.splitlines()
    end = 0
    for token in MarkdownIt().parse(page):
        if token.type != "fence" or token.map is None:
            continue
        above = "\n".join(lines[end : token.map[0]]).strip().rpartition("\n\n")[2]
        end = token.map[1]
        if title := re.search(r'title="([^"]*)"', token.info):
            kinds = {BACKGROUND: "terminal", AGAIN: "again", CELL: "notebook", NOT_RUN: "not run"}
            found = [word for begin, word in kinds.items() if title[1].startswith(begin)]
            yield (found or [title[1]])[0], above


class Recipe(Example):
    """A page and a folder in which it is followed. `stand_ins` are what the page needs and a test has not,
    and what stands there in its place; the page has to say so.
    """

    def __init__(self, page: Path, folder: Path, stand_ins: Mapping[str, object]) -> None:
        super().__init__(folder)
        (folder / "rules.py").unlink()
        self.page = page.read_text()
        self.here = folder
        self.stand_ins = {name: str(there) for name, there in stand_ins.items()}
        said = re.search(r"^In the tests,? (.*?)\n\n", f"{self.page}\n\n", re.DOTALL | re.MULTILINE)
        told = said[1] if said else ""
        for name in self.stand_ins:
            assert name in told, f"{page.name} does not say what stands in for {name}"
        self.environment["PATH"] = os.pathsep.join(
            (str(Path(sys.executable).parent), self.environment["PATH"])
        )
        self.notebook: Notebook | None = None

    def follow(self) -> str:
        """Does what the page says, from its first block to its last; everything that was printed."""
        printed = ""
        told: list[str] = []
        page = [block for block in blocks(self.page) if not block.title.startswith(NOT_RUN)]
        for number, block in enumerate(page):
            text = self._with_stand_ins(block.text)
            if block.is_run and block.title.startswith(BACKGROUND):
                self._begin(text, block.title.removeprefix(BACKGROUND).removeprefix(", on "))
            elif block.is_run and block.title == AGAIN:
                printed = self._run_until(text, self._with_stand_ins(page[number + 1].text))
                told.append(printed)
            elif block.is_run:
                printed = self._compute(text) if block.title == CELL else self._run(text)
                told.append(printed)
            elif block.language == "text":
                assert_shows(printed, text)
            elif block.title:
                path = self.here / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return "".join(told)

    def _with_stand_ins(self, text: str) -> str:
        for name, there in self.stand_ins.items():
            text = text.replace(name, there)
        return text

    def _run(self, commands: str) -> str:
        self._furnish_for(commands)
        kept = self.folder.parent / f"{self.folder.name}.environment"
        script = f"set -euo pipefail\n{commands}\nenv -0 > {kept}\n"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.processes.append(process)  # until its end: where time runs out, end() ends all of it
        printed = process.communicate(timeout=SECONDS)[0].decode()
        self.processes.remove(process)
        assert process.returncode == 0, f"{commands}\n{printed}\n{logs(self.folder)}"
        pairs = (each.partition("=") for each in kept.read_text().split("\0") if each)
        self.environment = {name: value for name, _, value in pairs}
        self.here = Path(self.environment["PWD"])
        return printed

    def _furnish_for(self, commands: str) -> None:
        begins = re.search(r"nightshift (run|serve)|ns\.run", commands)
        if begins and "NIGHTSHIFT_DATABASE_URL" not in self.environment:
            homes.furnish(self.folder / ".nightshift")

    def _compute(self, cell: str) -> str:
        self._furnish_for(cell)
        if self.notebook is None:
            self.notebook = Notebook(self.folder, self.environment)
        return self.notebook.compute(cell)

    def end(self) -> None:
        if self.notebook is not None:
            self.notebook.close()
        super().end()

    def _run_until(self, commands: str, page: str) -> str:
        """Runs the commands again and again; what they printed once they show what the page shows."""
        printed = ""

        def shows() -> bool:
            nonlocal printed
            try:
                printed = self._run(commands)
                assert_shows(printed, page)
            except AssertionError as error:
                printed = str(error)
                return False
            return True

        try:
            wait_until(shows, SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{page}\n{printed}\n{logs(self.folder)}") from error
        return printed

    def _begin(self, commands: str, host: str) -> None:
        self._furnish_for(commands)
        number = len(self.processes)
        environment = self.environment
        if host:
            own = self.folder.parent / f"{self.folder.name}.{host}"
            own.mkdir(exist_ok=True)
            named = f"import socket\nsocket.gethostname = lambda: {host!r}\n"
            (own / "sitecustomize.py").write_text(named)
            path = os.pathsep.join(filter(None, (str(own), environment.get("PYTHONPATH"))))
            environment = {**environment, "PYTHONPATH": path}
        with (self.folder / f"terminal.{number}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    ["bash", "-c", commands],
                    cwd=self.here,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


class Notebook:
    """A kernel of Jupyter in a folder, as behind a notebook there."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=str(folder), env=dict(environment))

    def compute(self, cell: str) -> str:
        """What stands below the cell once it has run; fails where the cell raises."""
        shown: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    shown.append(content["text"])
                case "execute_result" | "display_data":
                    shown.append(content["data"].get("text/plain", "") + "\n")

        reply = self.client.execute_interactive(cell, timeout=SECONDS, output_hook=take)
        content = reply["content"]
        assert content["status"] == "ok", "\n".join([cell, *shown, *content["traceback"]])
        return "".join(shown)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def assert_shows(printed: str, page: str) -> None:
    """Fails where a line of the page was not printed, in this order."""
    lines = [line for line in map(_plain, printed.splitlines()) if line]
    at = 0
    for line in filter(None, map(_plain, page.splitlines())):
        if line == "…":
            continue
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
        found = [i for i in range(at, len(lines)) if re.fullmatch(pattern, lines[i])]
        assert found, f"the page shows {line!r}, and this was printed:\n{printed}"
        at = found[0] + 1


def _plain(line: str) -> str:
    """A line without what may be another one: numbers that count no rows are #, rules and spaces are one each."""
    line = re.sub(r"[─━]+", "─", line)
    line = " ".join(line.split())
    if COUNTS.search(line):
        return NO_COUNT.sub("#", line)
    rows = r" rows?\b(?!/)"
    return re.sub(rf"{NUMBER}({rows})?", lambda found: found[0] if found[1] else "#", line)
