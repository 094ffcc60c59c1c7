"""The request file: what is left is read once; anything else in its place is refused."""

import json
import os
import stat

import pytest

from jupyter_gpu.adapters.request_file import (
    SIZE_LIMIT,
    drop_request,
    leave_request,
    request_path,
    take_request,
)
from jupyter_gpu.core.errors import GPUError, StoreError

GOOD = json.dumps({"schema": 1, "options": {"gpus": 2}})


@pytest.fixture
def connection(tmp_path):
    return str(tmp_path / "kernel-1b4e28ba.json")


def put(connection, text, mode=0o600):
    path = request_path(connection)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_what_is_left_is_read_once(connection, tmp_path):
    assert take_request(connection) is None
    leave_request(connection, {"gpus": 1})
    leave_request(connection, {"gpus": 2, "devices": ["1", "3"]})
    status = request_path(connection).stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert take_request(connection) == {"gpus": 2, "devices": ["1", "3"]}
    assert take_request(connection) is None
    assert list(tmp_path.iterdir()) == []


def test_it_is_not_taken_for_a_connection_file(connection):
    assert not request_path(connection).match("kernel-*.json")


def test_it_can_be_dropped(connection):
    leave_request(connection, {"gpus": 2})
    drop_request(connection)
    drop_request(connection)
    assert take_request(connection) is None


def test_a_folder_that_cannot_be_written_is_a_sentence():
    with pytest.raises(StoreError, match="cannot be left for the restart, in /nowhere: No such file"):
        leave_request("/nowhere/kernel-1.json", {"gpus": 2})
    assert take_request("/nowhere/kernel-1.json") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        (GOOD[:-3], "not JSON"),
        ("[" * 5000, "not JSON"),
        ("[]", "not a request"),
        ("3", "not a request"),
        ("{}", "not a request"),
        (json.dumps({"schema": 2, "options": {}}), "not a request"),
        (json.dumps({"schema": 1, "options": ["gpus"]}), "not a request"),
        (json.dumps({"schema": 1, "options": {"gpus": "x" * SIZE_LIMIT}}), "too large"),
    ],
)
def test_what_is_no_request_is_refused_and_removed(connection, text, why):
    path = put(connection, text)
    with pytest.raises(GPUError, match=why):
        take_request(connection)
    assert not path.exists()


def test_bytes_that_are_no_text_are_refused(connection):
    put(connection, "").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GPUError, match="not text"):
        take_request(connection)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_could_have_written_is_refused(connection, mode):
    put(connection, GOOD, mode)
    with pytest.raises(GPUError, match="others could have written it"):
        take_request(connection)


def test_a_second_name_of_another_file_is_refused(connection, tmp_path):
    path = put(connection, GOOD)
    (tmp_path / "other").hardlink_to(path)
    with pytest.raises(GPUError, match="others could have written it"):
        take_request(connection)


def test_a_symbolic_link_is_refused_and_its_target_stays(connection, tmp_path):
    target = tmp_path / "target"
    target.write_text(GOOD)
    request_path(connection).symlink_to(target)
    with pytest.raises(GPUError, match="not a plain file"):
        take_request(connection)
    assert target.read_text() == GOOD
    assert not os.path.lexists(request_path(connection))


def test_a_pipe_holds_nobody_up(connection):
    os.mkfifo(request_path(connection), 0o600)
    with pytest.raises(GPUError, match="not a plain file"):
        take_request(connection)


def test_a_directory_is_refused(connection):
    request_path(connection).mkdir()
    with pytest.raises(GPUError, match="not a plain file"):
        take_request(connection)


def test_another_users_file_is_refused(connection, needs_root):
    os.chown(put(connection, GOOD), 65534, 65534)
    with pytest.raises(GPUError, match="belongs to another user"):
        take_request(connection)
