"""The stages of a batch in a child."""

from enum import StrEnum


class Stage(StrEnum):
    """What a child does for its batches, in the order in which a batch meets it."""

    CLAIM = "claim"
    READ = "read"
    RENDER = "render"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    INFER = "infer"
    TABLE = "table"
    WRITE = "write"
    COMMIT = "commit"
    SETTLE = "settle"
