"""A lease that a process has from whoever started it: believed only when it is one."""

import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.inherited import take_inherited_lease

INHERIT = """
import os, sys
sys.path.insert(0, sys.argv[2])
from jupyter_gpu.adapters.inherited import take_inherited_lease
fd = os.environ.get("JUPYTER_GPU_LEASE_FD")
print(take_inherited_lease(os.environ, sys.argv[1]))
print("JUPYTER_GPU_LEASE_FD" in os.environ, os.get_inheritable(int(fd)))
sys.stdin.read()
"""


@pytest.fixture
def lease(eight_gpus):
    with jupyter_gpu.acquire(2) as held:
        yield held


def lock_of(lease_directory):
    return str(lease_directory / "lock")


def test_a_process_takes_the_lease_it_was_started_with(lease, lease_directory, program):
    child = program(
        INHERIT,
        environ=lease.environment,
        pass_fds=lease.pass_fds,
        arguments=(lock_of(lease_directory), os.path.dirname(os.path.dirname(__file__))),
    )
    assert child.read() == "True"
    assert child.read() == "False False"
    lease.release()
    with pytest.raises(jupyter_gpu.NoDeviceAvailable):
        jupyter_gpu.acquire(7)
    assert child.end() == 0
    jupyter_gpu.acquire(8).release()


def test_the_number_is_dropped_and_the_descriptor_no_longer_inheritable(lease, lease_directory):
    fd = lease.pass_fds[0]
    os.set_inheritable(fd, True)
    environ = {**lease.environment, "HOME": "/"}
    assert take_inherited_lease(environ, lock_of(lease_directory))
    assert "JUPYTER_GPU_LEASE_FD" not in environ
    assert environ["JUPYTER_GPU_LEASE"] == lease.id
    assert environ["HOME"] == "/"
    assert not os.get_inheritable(fd)


def test_nothing_is_inherited_where_the_variables_are_missing(lease, lease_directory):
    for missing in ("JUPYTER_GPU_LEASE", "JUPYTER_GPU_LEASE_FD"):
        environ = {k: v for k, v in lease.environment.items() if k != missing}
        assert not take_inherited_lease(environ, lock_of(lease_directory))
        assert "JUPYTER_GPU_LEASE_FD" not in environ


@pytest.mark.parametrize(
    "number", ["", "-1", "x", "²", "9999", "99999999999999999999", "1e1", "0x3"]
)
def test_a_number_that_is_no_open_descriptor_is_no_lease(lease, lease_directory, number):
    environ = lease.environment | {"JUPYTER_GPU_LEASE_FD": number}
    assert not take_inherited_lease(environ, lock_of(lease_directory))
    assert "JUPYTER_GPU_LEASE_FD" not in environ


def test_a_descriptor_of_another_file_is_no_lease_and_stays_as_it_is(
    lease, lease_directory, tmp_path
):
    other = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        os.set_inheritable(other, True)
        environ = lease.environment | {"JUPYTER_GPU_LEASE_FD": str(other)}
        assert not take_inherited_lease(environ, lock_of(lease_directory))
        assert os.get_inheritable(other)
    finally:
        os.close(other)


def test_a_lock_file_that_is_gone_makes_it_no_lease(lease, tmp_path):
    assert not take_inherited_lease(lease.environment, str(tmp_path / "lock"))


def test_the_standard_streams_are_no_lease(lease, lease_directory, program):
    child = program(
        INHERIT.replace(", os.get_inheritable(int(fd))", ""),
        environ={"JUPYTER_GPU_LEASE": lease.id, "JUPYTER_GPU_LEASE_FD": "1"},
        arguments=(lock_of(lease_directory), os.path.dirname(os.path.dirname(__file__))),
    )
    assert child.read() == "False"
    assert child.read() == "False"


