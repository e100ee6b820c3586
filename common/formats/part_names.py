"""Names of parts and of what lies beside them, and where a part lies."""

STAGING = "_attempts"
"""Folder of parts that Postgres does not name yet, in the output directory."""

PROOF = ".proof-"
"""Begins the names of small files by which a worker proves that it may write into a directory."""

MANIFEST = "_manifest.json"

OWNER = "_owner.json"
"""Marker in an output directory: which ledger and which job the directory belongs to."""

ARCHIVE = "_ledger"
"""Folder with what the ledger knew of the batches of a closed job, in the output directory."""

ARCHIVE_SUFFIX = ".archive"
"""Suffix of Parquet files that are not parts: a reader of `**/*.parquet` must not count them."""

GENERATIONS = "_generations"
"""Folder with a file for each finished generation of a job that grows, in the output directory."""

JUDGED = "_judged"
"""Folder with the rows that a judge's job reads, in the output directory."""

BARE = "-bare"
"""Marks the name of a part that was written before the columns of its function were known."""


def part_name(seq: int, batch_id: int, attempt: int, suffix: str, *, bare: bool = False) -> str:
    """Return a name such as part-000012-b345-a3.parquet. A ledger never gives a name twice: a process that was
    suspended while its job was deleted cannot write, move or delete a part of the next job of the directory.
    """
    return f"part-{seq:06d}-b{batch_id}-a{attempt}{BARE if bare else ''}.{suffix}"


def is_result(name: str) -> bool:
    """Whether a file of this name in an output directory is a part or the manifest."""
    return name.startswith("part-") or name == MANIFEST


def is_own(name: str) -> bool:
    """Whether a job writes a file of this name directly into its output directory."""
    return is_result(name) or name == OWNER


def is_part(name: str) -> bool:
    """Whether a name is one that a part may have."""
    return name.startswith("part-") and "/" not in name


def is_staged(name: str) -> bool:
    """Whether a worker writes a file of this name into the staging folder: a part, or a proof that it may."""
    return is_part(name) or (name.startswith(PROOF) and "/" not in name)


def is_bare(name: str) -> bool:
    """Whether a part of this name was written before the columns of its function were known."""
    return BARE in name


def staged(output_uri: str, name: str) -> str:
    """Where an attempt writes its part."""
    return f"{output_uri.rstrip('/')}/{STAGING}/{name}"


def final(output_uri: str, name: str) -> str:
    """Where a part lies once Postgres named it."""
    return f"{output_uri.rstrip('/')}/{name}"


def located(output_uri: str, name: str) -> str | None:
    """Where a part lies now: in its final place or still in the staging folder; None for neither.

    The final place is checked twice, since a part may be moved between the first two checks. A link
    is no part.
    """
    from nightshift.common import storage

    place, waiting = final(output_uri, name), staged(output_uri, name)
    return next((uri for uri in (place, waiting, place) if storage.exists(uri, links=False)), None)


def archived(output_uri: str, name: str) -> str:
    """Where a file of the archive of a job lies."""
    return f"{output_uri.rstrip('/')}/{ARCHIVE}/{name}"


def generation(output_uri: str, number: int) -> str:
    """Where the file about a finished generation of a job lies."""
    return f"{output_uri.rstrip('/')}/{GENERATIONS}/{number:06d}.json"
