"""This process's own lease is found by its descriptor and nothing else."""

import dataclasses
import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.core.leases import Owner, ProcessRef
from jupyter_gpu.own_lease import above, find_own_lease

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def kernel_lease():
    """A lease of this process that says it is a kernel's."""
    with jupyter_gpu.acquire(2) as lease:
        ours = Owner("kernel", processes=(reference(os.getpid()),))
        lease.describe(lambda _: ours)
        yield lease


def test_there_is_none_where_nobody_has_leased(lease_directory):
    assert find_own_lease(os.environ) is None
    assert find_own_lease(os.environ, Place(lease_directory, "given")) is None


def test_it_needs_no_variable(kernel_lease):
    found = find_own_lease({"JUPYTER_GPU_LEASE_DIR": os.environ["JUPYTER_GPU_LEASE_DIR"]})
    assert (found.fd, found.record.id) == (kernel_lease.claim.fd, kernel_lease.id)
    assert found.record.uuids == kernel_lease.record.uuids
    assert not found.has_keeper


def test_a_variable_without_a_descriptor_is_nothing(kernel_lease, program):
    code = """
import os
from jupyter_gpu.own_lease import find_own_lease
print(find_own_lease(os.environ))
input()
"""
    assert program(code, environ=kernel_lease.environment).read() == "None"
    child = program(code, environ=kernel_lease.environment, pass_fds=kernel_lease.pass_fds)
    assert kernel_lease.id in child.read()


def test_what_the_persons_code_has_leased_is_not_it(kernel_lease):
    with jupyter_gpu.acquire(1):
        assert find_own_lease(os.environ).record.id == kernel_lease.id


def test_a_lease_of_another_process_on_the_same_description_is_not_it(kernel_lease):
    gone = ProcessRef(os.getpid(), 1, reference(os.getpid()).namespace)
    kernel_lease.describe(lambda owner: dataclasses.replace(owner, processes=(gone,)))
    assert find_own_lease(os.environ) is None
    named = {**os.environ, "JUPYTER_GPU_LEASE": kernel_lease.id}
    assert find_own_lease(named).record.id == kernel_lease.id


def test_a_record_that_is_lost_is_thought_of_anew(kernel_lease, lease_directory):
    (lease_directory / "records" / f"{kernel_lease.id}.json").unlink()
    assert find_own_lease(os.environ) is None
    named = {**os.environ, "JUPYTER_GPU_LEASE": kernel_lease.id}
    assert find_own_lease(named).record.uuids == ()


def test_a_keeper_is_known(kernel_lease):
    kernel_lease.describe(lambda o: dataclasses.replace(o, keeper=reference(os.getppid())))
    assert find_own_lease(os.environ).has_keeper


def test_a_kernel_that_its_record_does_not_name_yet_knows_its_server(kernel_lease):
    server = reference(os.getppid())
    kernel_lease.describe(lambda o: dataclasses.replace(o, keeper=server, processes=()))
    assert find_own_lease(os.environ).record.id == kernel_lease.id
    elsewhere = dataclasses.replace(server, start=1)
    kernel_lease.describe(lambda o: dataclasses.replace(o, keeper=elsewhere, processes=()))
    assert find_own_lease(os.environ) is None


def test_above_a_lease_is_what_stood_there_before():
    assert above({"A": "1", "JUPYTER_GPU_LEASE": "x"}, None) == {"A": "1", "JUPYTER_GPU_LEASE": "x"}


def test_above_ones_own_lease_is_the_one_it_is_nested_in(kernel_lease):
    own = find_own_lease(os.environ)
    environ = {"A": "1", "JUPYTER_GPU_LEASE": kernel_lease.id}
    assert above(environ, own) == {"A": "1"}
    nested = dataclasses.replace(own.record, ancestors=("a" * 15, "b" * 15))
    assert above(environ, dataclasses.replace(own, record=nested)) == {
        "A": "1",
        "JUPYTER_GPU_LEASE": "b" * 15,
    }
