"""The exit codes of every process: commands and probes, workers, and the children of workers."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to whoever started it. Names of one number are aliases of the first."""

    DONE = 0
    """Every row has an answer; a child was asked to stop and released everything; a probe says yes."""

    ROW_ERRORS = 1
    """`run`, `wait` and `judge`: finished, with row errors. A row without a score is one."""

    FINDINGS = 1
    """`verify` and `doctor` found something wrong; a probe says no."""

    CRASHED = 1
    """What Python exits with at an error that nobody caught; a child that ended while it loaded."""

    REFUSED = 2
    """A person can do something about it, and the message says what: bad input, an outage."""

    NO_RUN_DIR = 2
    """A probe cannot look: the setting is wrong, the process may be well."""

    NOT_FINISHED = 3
    """`run`, `wait` and `submit`: failed, paused, cancelled, or the output is lost."""

    BROKEN = 3
    """An error of another kind, such as a dead engine: other input does not help."""

    ENGINE_DEAD = 70
    """A child whose engine died or stalled: each batch that the child held is a suspect."""

    LOAD_FAILED = 71
    """A child whose engine could not be loaded; the child wrote why to the ledger."""

    THREADS_HANG = 72
    """A child of which too many threads hung in reading, rendering or writing. It released everything."""

    ENGINE_GONE = 73
    """A child whose engine ended and could not be started again. It released everything."""

    LEDGER_AWAY = 75
    """A child that could not reach Postgres at its start; another child is started."""

    INTERRUPTED = 130
    """Ctrl-C, as shells number it."""
