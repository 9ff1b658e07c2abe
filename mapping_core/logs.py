"""The structured logger: structlog's interface over the standard logger ``mapping_core``.

A library must not decide where a program's log goes, so structlog is never configured
here; what is logged arrives at ``logging.getLogger("mapping_core")`` as one line of keys
and values, and follows whatever the program configured.
"""

from __future__ import annotations

import logging

import structlog


def get_logger() -> structlog.stdlib.BoundLogger:
    """The package's logger: ``get_logger().info("epoch", epoch=3, loss=0.2)``."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger("mapping_core"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"], repr_native_str=False),
        ],
    )
    return logger
