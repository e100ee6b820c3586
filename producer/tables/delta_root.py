"""The root of a Delta table on local disk: its log is read by a library that knows no walls, so the way to it is
looked at first.
"""

from pathlib import Path

from nightshift.common import storage
from nightshift.common.errors import BadInput

LOG = "_delta_log"
"""Folder of the log, below the root of a table."""


def check_root(root: str) -> None:
    """BadInput for a local table that lies outside the walls, or whose log is a link or has one: a link may lead
    out. A table that is not there is none of these.
    """
    if not storage.is_local(root):
        return
    storage.folder_identity(f"{root}/{LOG}")
    folder = Path(root) / LOG
    if folder.is_symlink():
        raise BadInput(f"{folder} is a link: the log of a table is read without links")
    if not folder.is_dir():
        return
    linked = next((each for each in folder.rglob("*") if each.is_symlink()), None)
    if linked is not None:
        raise BadInput(f"{linked} is a link: the log of a table is read without links")
