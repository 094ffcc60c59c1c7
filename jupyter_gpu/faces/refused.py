"""A refused start on its way to the person: clean text on every route of a Jupyter server."""

from __future__ import annotations

import logging

from tornado.web import HTTPError

SERVICE_UNAVAILABLE = 503


class KernelRefused(HTTPError):
    """The kernel was not started, and the message says why and what to do.

    An HTTPError, because the server then answers POST /api/kernels with the message instead of
    "Unhandled error"; its text is the plain message, because POST /api/sessions sends that on.
    The reason travels in a header line too, so it is one line of ASCII.
    """

    def __init__(self, message: str) -> None:
        one_line = "; ".join(line.strip() for line in message.splitlines())
        reason = one_line.encode("ascii", "replace").decode("ascii")
        super().__init__(SERVICE_UNAVAILABLE, message, reason=reason)
        self.message = message

    def __str__(self) -> str:
        return _Plain(self.message)


class _Plain(str):
    """A text that is the same in ``repr``: PATCH /api/sessions, a change of kernel, sends that."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


def without_our_traces(record: logging.LogRecord) -> bool:
    """Drop the stack traces that jupyter_client logs for a refusal; a logging filter.

    The refusal is no failure of the program and has been logged in one line of its own.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], KernelRefused))
