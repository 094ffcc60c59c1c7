"""What a kernelspec starts, as jupyter_client will start it a moment later."""

import os
import sys

import pytest
from jupyter_client.kernelspec import KernelSpec

from jupyter_gpu.faces.spec_launch import environments, origin_of, program_of


def spec(*argv, env=None, metadata=None):
    return KernelSpec(argv=list(argv), env=env or {}, metadata=metadata or {})


def test_the_kernelspecs_variables_are_filled_in_from_the_launch():
    launch = {"HOME": "/home/alice", "A": "1"}
    env = {"DATA": "${HOME}/data", "OTHER": "$MISSING", "A": "2", "TWICE": "$$A"}
    base, added = environments(spec("python", env=env), launch)
    assert (base, launch) == (launch, {"HOME": "/home/alice", "A": "1"})
    assert base is not launch
    assert added == {"DATA": "/home/alice/data", "OTHER": "$MISSING", "A": "2", "TWICE": "$A"}


def test_without_an_environment_it_is_the_servers():
    base, added = environments(None, None)
    assert (base, added) == (dict(os.environ), {})


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (("/opt/py/bin/python3", "-m", "jupyter_gpu.kernel"), "/opt/py/bin/python3"),
        (("python", "-m", "ipykernel"), None),
        (("python3", "-m", "ipykernel"), None),
        ((f"python{sys.version_info[0]}.{sys.version_info[1]}",), None),
        (("python2",), "python2"),
        (("R", "--slave"), "R"),
        ((), None),
    ],
)
def test_the_program_is_the_kernelspecs_own_unless_it_means_the_servers(argv, program):
    assert program_of(spec(*argv)) == program


def test_without_a_kernelspec_the_program_is_the_servers():
    assert program_of(None) is None


@pytest.mark.parametrize(
    ("metadata", "origin"),
    [
        ({"kernel_provisioner": {"provisioner_name": "gpu-provisioner", "config": {"gpus": 2}}},
         "kernelspec"),
        ({"kernel_provisioner": {"provisioner_name": "gpu-provisioner", "config": {}}}, "server"),
        ({"kernel_provisioner": {"provisioner_name": "gpu-provisioner"}}, "server"),
        ({}, "server"),
    ],
)  # fmt: skip
def test_a_request_comes_from_the_kernelspec_if_that_says_anything(metadata, origin):
    assert origin_of(spec("python", metadata=metadata)) == origin
    assert origin_of(None) == "server"
