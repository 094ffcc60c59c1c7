"""A wish that waits for the next start, and the words where it could not be granted."""

import pytest

from jupyter_gpu.adapters.request_file import leave_request, request_path
from jupyter_gpu.core.errors import NoDeviceAvailable, RequestError, UnknownOption
from jupyter_gpu.core.request import Request
from jupyter_gpu.testing import fake_gpu
from jupyter_gpu.wish import (
    Wish,
    announced,
    devices_in_words,
    drop_wish,
    leave_wish,
    not_granted,
    take_wish,
)


@pytest.fixture
def connection(tmp_path):
    return str(tmp_path / "kernel-1.json")


@pytest.mark.parametrize(
    "request_",
    [
        Request(gpus=2, wait_seconds=0),
        Request(gpus=0, wait_seconds=0),
        Request(gpus="all", model="H200", wait_seconds=600),
        Request(2, ("1", "GPU-ab"), min_free_memory_bytes=20 * 2**30, wait_seconds=0.5),
    ],
)
def test_it_is_left_and_taken_once(connection, request_):
    leave_wish(connection, request_)
    assert take_wish(connection) == Wish(request_)
    assert take_wish(connection) is None


def test_nothing_is_left_where_there_is_no_connection_file():
    assert take_wish(None) is None
    assert take_wish("") is None
    drop_wish(None)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"gpuss": 1}, UnknownOption), ({"gpus": -1}, RequestError), ({"wait": "soon"}, RequestError)],
)
def test_options_that_cannot_be_read_are_a_trouble(connection, options, error):
    leave_request(connection, options)
    wish = take_wish(connection)
    assert wish.request is None
    assert isinstance(wish.trouble, error)


def test_it_can_be_dropped(connection):
    leave_wish(connection, Request())
    drop_wish(connection)
    assert not request_path(connection).exists()


def test_what_is_told_where_it_could_not_be_granted():
    error = NoDeviceAvailable("No 2 GPUs are free.")
    told = not_granted(Wish(Request(gpus=2)), error, devices_in_words((fake_gpu(0), fake_gpu(3))))
    assert told == (
        "2 GPUs, as %gpu use had asked for, could not be had.\nNo 2 GPUs are free.\n"
        "This kernel has physical 0, 3."
    )
    assert not_granted(Wish(trouble=error), error, devices_in_words(())).endswith("has no GPU.")


def test_it_is_told_before_what_else_there_is_to_say():
    assert announced({"A": "1"}, None) == {"A": "1"}
    assert announced({"JUPYTER_GPU_NOTICE": "b"}, "a") == {
        "JUPYTER_GPU_NOTICE": "a\nb",
        "JUPYTER_GPU_ANNOUNCE": "1",
    }
