"""A refused start on its way to the person: clean text on every route."""

import logging
import sys

import pytest
from tornado.web import HTTPError

from jupyter_gpu.faces.refused import KernelRefused, without_our_traces

MESSAGE = "No GPU is free (4 on this machine).\n  0  alice  exp7.ipynb  since 09:12"


def test_its_text_is_the_plain_message():
    refused = KernelRefused(MESSAGE)
    assert str(refused) == MESSAGE
    assert refused.message == MESSAGE


def test_a_server_answers_with_service_unavailable_and_the_reason_on_one_line():
    refused = KernelRefused(MESSAGE)
    assert isinstance(refused, HTTPError)
    assert refused.status_code == 503
    assert refused.reason.startswith("No GPU is free (4 on this machine).")
    assert "alice" in refused.reason
    assert "\n" not in refused.reason
    assert "\r" not in refused.reason


def test_the_reason_is_ascii_because_a_header_carries_it():
    reason = KernelRefused("No GPU – für «größer.ipynb»\r\nX-Evil: 1").reason
    assert reason.isascii()
    assert reason.isprintable()


@pytest.mark.parametrize("text", ["100 % of %s", "%", "%(x)d"])
def test_a_percent_sign_breaks_no_route(text):
    refused = KernelRefused(text)
    assert str(refused) == text
    assert logging.LogRecord("x", 30, "", 1, "%s", (refused,), None).getMessage() == text


def test_the_stack_trace_of_a_refusal_is_not_logged():
    assert not without_our_traces(record_with(KernelRefused(MESSAGE)))


def test_other_stack_traces_and_plain_lines_are_logged():
    assert without_our_traces(record_with(RuntimeError(MESSAGE)))
    assert without_our_traces(record_with(None))
    assert without_our_traces(record_with(HTTPError(503)))


def record_with(error):
    information = None
    if error is not None:
        try:
            raise error
        except type(error):
            information = sys.exc_info()
    return logging.LogRecord("test", logging.ERROR, __file__, 1, "failed", (), information)


def test_it_is_plain_in_the_form_that_a_change_of_kernel_sends():
    # jupyter_server answers PATCH /api/sessions with repr(str(error)).
    assert repr(str(KernelRefused(MESSAGE))) == MESSAGE
