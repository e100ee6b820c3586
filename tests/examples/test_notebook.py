"""examples/notebook: somebody who never sees a shell gets a DataFrame back."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import homes
from tests.support.example import Example


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_dataframe_goes_through_a_model_and_comes_back(
    example: Callable[[str], Example],
) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = example("notebook")
    example("sentiment")  # its model
    homes.furnish(notebook.folder / ".nightshift")
    pages = nbformat.read(notebook.folder / "reviews.ipynb", as_version=4)
    shows: list[Any] = []

    class Watched(NotebookClient):
        """Keeps what each look at the job showed; the cell keeps the last of it."""

        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] == "update_display_data":
                shows.append(msg["content"]["data"])
            return super().process_message(msg, cell, cell_index)

    where = {"metadata": {"path": str(notebook.folder)}}
    Watched(pages, timeout=400, resources=where).execute()

    cells = [cell for cell in pages.cells if cell.cell_type == "code"]
    assert any("0 of 5 rows" in each.get("text/html", "") for each in shows)
    assert shows[-1] == {"text/plain": ""}
    ran = next(cell for cell in cells if "ns.run" in cell.source)
    printed = "".join(each.get("data", {}).get("text/plain", "") for each in ran.outputs)
    assert "5 of 5 rows, 0 failed; output in" in printed
    assert not [each for each in ran.outputs if each.output_type == "stream"], ran.outputs
    table = next(cell for cell in cells if "labels[[" in cell.source).outputs[-1]["data"]
    labels = [line.split()[3] for line in table["text/plain"].splitlines()[1:]]
    assert labels == ["positive", "negative", "neutral", "negative", "positive"]
    assert "a-1" in table["text/html"]
    assert "state=<JobState.COMPLETED" in cells[-1].outputs[-1]["data"]["text/plain"]
