"""Configuration of logging: target and format of log lines; called once in each process of a mount.

text  `2026-01-31T12:00:00.250Z stripefs[4711] WARNING stripefs.fuse: event; remedy`
json  one object a line with time, level, logger, pid, message, and `exception` where there is one

Times are UTC. Several processes may write one file (each line is one append), and a file that logrotate moved away is
opened anew.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import time

from stripefs.errors import ConfigError

__all__ = ["JsonLines", "configure"]


class _TextFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, program: str) -> None:
        super().__init__(f"%(asctime)s {program}[%(process)d] %(levelname)s %(name)s: %(message)s")


class JsonLines(logging.Formatter):
    """A record as one JSON object; the fields of `extra={"fields": {…}}` are added to it."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure(form: str, level: str, file: str = "", program: str = "stripefs") -> None:
    """Send the records of all loggers to `file`, or to standard error when it is "".

    form is text or json, level debug, info, warning or error; text lines name `program`. Raises ConfigError when the
    file cannot be opened.
    """
    handler: logging.Handler
    try:
        handler = logging.handlers.WatchedFileHandler(file) if file else logging.StreamHandler()
    except OSError as error:
        raise ConfigError(
            f"log file {file} cannot be opened: {error.strerror}", hint="choose one by --log-file"
        ) from error
    handler.setFormatter(JsonLines() if form == "json" else _TextFormatter(program))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
