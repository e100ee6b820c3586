"""Where a draft is written, and where its job would write: nothing that is there is touched."""

from contextlib import ExitStack
from pathlib import Path

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.spec.parse import parse_yaml
from nightshift.common.system_errors import told

MOST_OUTPUTS = 100
"""How many names of output directories are tried."""


def check_target(target: Path, source: str) -> None:
    """BadInput for a spec that cannot be written there."""
    if target.suffix.lower() not in (".yaml", ".yml"):
        raise BadInput(f"--to {target}: a spec ends in .yaml or .yml")
    if target.exists() or target.is_symlink():
        raise BadInput(f"{target} is there already: name another file with --to")
    if storage.is_local(source) and _lies_in(target, Path(source)):
        raise BadInput(
            f"{target} would lie in the input {source}, and be read as input: name a file elsewhere with --to"
        )


def free_output(name: str, source: str) -> str:
    """A directory beside the input of a job that is not there yet."""
    inside = storage.is_local(source) and _lies_in(Path(f"{name}-out"), Path(source))
    folder = Path("..") if inside else Path()
    names = [f"{name}-out", *(f"{name}-out-{number}" for number in range(2, MOST_OUTPUTS))]
    return str(next((path for each in names if not (path := folder / each).exists()), names[0]))


def write_new(target: Path, text: str) -> JobSpec:
    """Writes the text to a file that must not be there, and returns it as a spec; BadInput where it cannot.
    A file that could be written in part is removed.
    """
    spec = parse_spec(parse_yaml(text, str(target)), str(target))
    try:
        with ExitStack() as undo:
            with target.open("x", encoding="utf-8") as file:
                undo.callback(target.unlink)
                file.write(text)
            undo.pop_all()
    except FileExistsError as error:
        raise BadInput(f"{target} is there already: name another file with --to") from error
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {told(error)}") from error
    return spec


def _lies_in(path: Path, folder: Path) -> bool:
    try:
        return folder.is_dir() and path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):
        return False
