"""Log lines: constant event names with fields, for people or as JSON, always on stderr."""

import logging
import sys

import structlog

from common.plain import one_line
from common.settings import Settings


def configure(settings: Settings, **fields: object) -> None:
    """Sets up structlog and the standard library's loggers; `fields` stand on every line."""
    level = getattr(logging, settings.log_level.upper())
    shared: list[structlog.typing.Processor] = [
        _fields(fields),
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
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("alembic", "kombu", "celery", "amqp", "openai", "httpx2"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def _one_line(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What users wrote can neither make a line of its own nor steer a terminal."""
    return {
        name: one_line(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _fields(fields: dict[str, object]) -> structlog.typing.Processor:
    def add(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return {**fields, **event}

    return add
