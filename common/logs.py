"""Log lines: constant event names with fields, for people or as JSON, always on stderr."""

import logging
import multiprocessing
import os
import sys
import threading
from pathlib import Path
from types import TracebackType

import structlog

from nightshift.common.settings import Settings, load_settings
from nightshift.common.text import one_line

log = structlog.get_logger(__name__)

JSON_OF_VLLM = {
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("vllm_logging.json")),
}
"""Environment of a child whose lines are JSON: vLLM's processes then log in the same format. Where an
operator set one of the two, neither is set here; vLLM refuses the second without the first."""

NO_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
"""Environment of a child without progress bars."""


def configure(settings: Settings, **fields: object) -> None:
    """Sets up structlog and the standard library's loggers; `fields` stand on every line."""
    level = getattr(logging, settings.log_level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        lambda _logger, _method, event: {**fields, **event},
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _one_line,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("alembic", "kombu", "celery", "amqp", "openai", "httpx2"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
    if settings.log_format == "json":
        _log_what_python_prints()


def configure_library() -> None:
    """Lets our code log warnings alone, on stderr, in a program that has not set structlog up; the
    loggers of the program stay as they are.
    """
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


def json_handler() -> logging.Handler:
    """For vllm_logging.json: the handler of this process, also where vLLM itself started it."""
    root = logging.getLogger()
    if not root.handlers:
        process = multiprocessing.current_process().name
        configure(load_settings(log_format="json"), process=process, pid=os.getpid())
    return root.handlers[0]


def _log_what_python_prints() -> None:
    """Logs warnings and the tracebacks of threads and processes that end, each on one line."""
    logging.captureWarnings(True)

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("process_crashed", exc_info=(kind, error, trace))

    def thread_ended(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            name = None if args.thread is None else args.thread.name
            trace = (args.exc_type, args.exc_value, args.exc_traceback)
            log.critical("thread_crashed", thread=name, exc_info=trace)

    sys.excepthook = ended
    threading.excepthook = thread_ended


def _one_line(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Text of users cannot start a new line or control the terminal."""
    return {
        name: one_line(value) if isinstance(value, str) else value for name, value in event.items()
    }
