"""Every recipe has the shape of a recipe, and a test follows it."""

import re
from pathlib import Path

import pytest

from tests.support.recipe import (
    AGAIN,
    NOT_RUN,
    RECIPES,
    ROOT,
    Recipe,
    assert_shows,
    blocks,
    told_above,
)

PAGES = sorted(page for page in RECIPES.glob("*.md") if page.name != "index.md")

PARTS = ("## What you see", "## What it costs", "## What to change")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_is_one_screen_with_the_same_parts_as_the_others(page: Path) -> None:
    text = page.read_text()
    lines = text.splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("> "), "the sentence of the person who comes"
    assert "\n**Needs:** " in text
    assert [part for part in PARTS if f"\n{part}\n" not in text] == []
    assert len([line for line in lines if line]) <= 92


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_test_follows_each_recipe(page: Path) -> None:
    tests = "".join(path.read_text() for path in sorted((ROOT / "tests/recipes").glob("test_*.py")))
    assert re.search(rf'(recipe|on_fleet)\(\s*"{page.stem}"', tests)
    text = page.read_text()
    assert any(block.is_run for block in blocks(text))
    looks = [number for number, block in enumerate(blocks(text)) if block.title == AGAIN]
    languages = [block.language for block in blocks(text)]
    assert all(languages[number + 1 :][:1] == ["text"] for number in looks), "what it shows"
    left_out = [block.title for block in blocks(text) if block.title.startswith(NOT_RUN)]
    assert all(len(title) > len(NOT_RUN) + 10 for title in left_out), "a reason"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_the_text_above_a_block_says_what_its_title_says(page: Path) -> None:
    told = list(told_above(page.read_text()))
    assert [each for each in told if each[0].lower() not in each[1].lower()] == []


def test_each_recipe_stands_in_the_list_of_all() -> None:
    index = (RECIPES / "index.md").read_text()
    assert [page.stem for page in PAGES if f"]({page.name})" not in index] == []


@pytest.mark.parametrize(
    ("printed", "page", "shows"),
    [
        ("job 3: 17 rows\n", "job 1: 17 rows", True),
        ("job 3: 17 rows\n", "job 1: 1,000 rows", False),
        ("rows   400 done, 0 failed\n", "rows  400 done, 0 failed", True),
        ("rows   399 done, 1 failed\n", "rows  400 done, 0 failed", False),
        ("ok   rows   17 of 17 rows, each once\n", "ok   rows   18 of 18 rows, each once", False),
        ("ok   row errors   the same: 7 in 3.1 s\n", "ok   row errors   the same: 7 in 2 s", True),
        ("ok   row errors   the same: 6 in 3.1 s\n", "ok   row errors   the same: 7 in 2 s", False),
        ("job 3 (a): 30 rows in 4 batches\n", "job 1 (a): 30 rows in 4 batches", True),
        ("job 3 (a): 31 rows in 4 batches\n", "job 1 (a): 30 rows in 4 batches", False),
        ("2 results in x.jsonl\n", "3 results in x.jsonl", False),
        ("in all: 36 function_error\n", "in all: 37 function_error", False),
        ("job 3 is completed: 2 of 2 rows, 0 failed\n", "job 1 …: 2 of 2 rows, 0 failed", True),
        ("job 3 is completed: 1 of 2 rows, 1 failed\n", "job 1 …: 2 of 2 rows, 0 failed", False),
        ("speed  9 rows/s an engine\n", "speed  11 rows/s an engine", True),
        ("a\nb\nc\n", "a\nc", True),
        ("a\nb\nc\n", "c\na", False),
        ("took 3.1 s at 08:41\n", "took 2 s at 9:00", True),
        ("reviews  done\n", "reviews failed", False),
        ("path /x/y is there\n", "path … is there\n…", True),
        ("path /x/y is gone\n", "path … is there", False),
        ("━━━━ 5\n", "━━ 5", True),
    ],
)
def test_a_page_shows_what_was_printed(printed: str, page: str, shows: bool) -> None:
    if shows:
        assert_shows(printed, page)
    else:
        with pytest.raises(AssertionError, match="the page shows"):
            assert_shows(printed, page)


PAGE = f"""
In the tests, `there` stands in for `/mnt/shared`.

```sh
mkdir -p /mnt/shared && cd /mnt/shared
export WORD=hello
```

```csv title="word.txt"
a file
```

```sh title="in another terminal, on gpu-a"
python -c "import os, socket; print(os.environ['WORD'], socket.gethostname())" > said.new
mv said.new said
```

```sh title="{AGAIN}"
ls
cat said || true
```

```text
word.txt
hello gpu-a
```

```sh title="not run here: it would fail"
exit 1
```
"""


def test_a_page_is_followed_in_the_folder_and_with_the_variables_of_its_reader(
    tmp_path: Path,
) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    page = Recipe(tmp_path / "page.md", tmp_path / "here", {"/mnt/shared": tmp_path / "there"})
    try:
        assert page.follow().endswith("hello gpu-a\n")
    finally:
        page.end()
    assert (tmp_path / "there/word.txt").read_text() == "a file\n"


def test_a_page_that_hides_a_stand_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A page\n\nIn the tests, a folder stands in for another.\n")
    with pytest.raises(AssertionError, match="what stands in for /mnt/shared"):
        Recipe(tmp_path / "page.md", tmp_path / "here", {"/mnt/shared": tmp_path})
