"""The outfit of a lease: variables, caps through MPS or through the frameworks, and CPUs."""

import json
import os

import pytest

from jupyter_gpu.candidates import on_card
from jupyter_gpu.core.devices import Inventory, Process
from jupyter_gpu.core.environment import merged, without_caps
from jupyter_gpu.core.errors import NoDeviceAvailable
from jupyter_gpu.core.facts import MPS
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Place, Topology
from jupyter_gpu.core.variables import CAPS
from jupyter_gpu.outfit import daemon_for, outfit
from jupyter_gpu.testing import FakeMachine, fake_gpu, fake_lease

GIB = 2**30
GPUS = (fake_gpu(0), fake_gpu(1))
MACHINE = Inventory("simulated", devices=GPUS)
# The name that torch asks for now, and the older one, which it looks up first.
TORCH, OLDER = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
JAX = "XLA_PYTHON_CLIENT_MEM_FRACTION"
LIMIT, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
STAY = "import sys; print(1); sys.stdin.read()"


@pytest.fixture
def program_with_torch(tmp_path):
    """The Python of an installation that has torch 2.11, by its installer's files."""
    program = tmp_path / "bin" / "python3.12"
    program.parent.mkdir()
    program.touch(mode=0o755)
    metadata = tmp_path / "lib" / "python3.12" / "site-packages" / "torch-2.11.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    return str(program)


@pytest.fixture
def daemon(tmp_path, program):
    """The folder of an MPS control daemon, as far as one can be seen."""
    folder = tmp_path / "pipes"
    folder.mkdir()
    process = program(STAY, arguments=("nvidia-cuda-mps-control", "-d"))
    process.read()
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(str(process.pid))
    return str(folder)


def fitted(gpus="1/4", environ=None, devices=GPUS[:1], mps=None, **options):
    program = options.pop("program", None)
    topology = options.pop("topology", None)
    request = Request.parse({"gpus": gpus, **options})
    return outfit(
        devices, request, MACHINE, environ or {}, program=program, mps=mps, topology=topology
    )


def test_a_whole_gpu_gets_its_variables_and_no_caps():
    found = fitted(1)
    assert found.environment.keys() == {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
    }
    assert (found.caps, found.cpus, found.because) == ((), None, ())


def test_a_shares_torch_and_jax_are_capped_and_that_is_said(program_with_torch):
    found = fitted(program=program_with_torch)
    assert found.environment[JAX] == "0.25"
    assert found.environment[TORCH] == "per_process_memory_fraction:0.25"
    assert "torch's cache at most 35.0 GiB of GPU 0 (torch 2.11.0)" in found.caps[0]
    assert "isolates nothing" in found.caps[0]
    remembered = json.loads(found.environment[CAPS])
    assert remembered[JAX] == ["0.25", None]
    assert remembered[TORCH] == [found.environment[TORCH], None]


def test_a_persons_own_settings_are_merged_and_come_back(program_with_torch):
    theirs = {OLDER: "expandable_segments:True", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    found = fitted(environ=theirs, program=program_with_torch)
    assert found.environment[OLDER] == (
        "expandable_segments:True,per_process_memory_fraction:0.25"
    )
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in found.environment
    inside = merged(theirs, found.environment)
    assert inside["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    after = without_caps(inside)
    assert after[OLDER] == theirs[OLDER]
    assert not {JAX, CAPS} & set(after)


def test_the_caps_of_a_lease_above_are_not_the_persons(program_with_torch):
    theirs = {OLDER: "expandable_segments:True"}
    above = fitted("1/2", theirs, program=program_with_torch)
    inside = merged(theirs, above.environment)
    below = merged(inside, fitted("1/4", inside, program=program_with_torch).environment)
    assert below[OLDER] == "expandable_segments:True,per_process_memory_fraction:0.25"
    assert without_caps(below)[OLDER] == theirs[OLDER]
    again = merged(below, fitted("1/2", below, program=program_with_torch).environment)
    assert again[OLDER] == inside[OLDER]


@pytest.mark.parametrize(
    ("cap", "fraction"), [("none", None), (14 * GIB, "0.1"), ("14GiB", "0.1"), ("auto", "0.25")]
)
def test_a_memory_cap_has_its_forms(program_with_torch, cap, fraction):
    found = fitted(memory_cap=cap, program=program_with_torch)
    assert found.environment.get(JAX) == fraction
    assert (CAPS in found.environment) == (fraction is not None)
    assert ("memory_cap is none" in " ".join(found.caps)) == (cap == "none")


def test_a_cap_on_whole_gpus_counts_for_each(program_with_torch):
    found = fitted(2, devices=GPUS, memory_cap="70GiB", program=program_with_torch)
    assert found.environment[TORCH] == "per_process_memory_fraction:0.5"
    assert "each GPU" in found.caps[0]


def test_nothing_is_looked_up_for_no_device():
    found = fitted(0, devices=())
    assert found.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "-1"}


def test_through_mps_the_driver_limits_and_devices_are_named_by_uuid():
    found = fitted(mps=MPS("/pipes", daemon=True))
    assert found.environment["CUDA_VISIBLE_DEVICES"] == GPUS[0].uuid
    assert (found.environment[PIPES], found.environment[THREADS]) == ("/pipes", "25")
    assert found.environment[LIMIT] == f"0={35 * 1024}M"
    assert not {TORCH, OLDER} & set(found.environment)
    assert set(json.loads(found.environment[CAPS])) == {PIPES, LIMIT, THREADS, JAX}


@pytest.mark.parametrize("runs", [False, None])
def test_a_daemon_that_may_not_run_limits_nothing(runs):
    found = fitted(mps=MPS("/pipes", daemon=runs))
    assert not {PIPES, LIMIT, THREADS} & set(found.environment)
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("simulated", [True, False])
def test_a_simulated_machine_is_advised_no_daemon(program_with_torch, simulated):
    environ = {"JUPYTER_GPU_SIMULATE": "2"} if simulated else {}
    found = fitted(environ=environ, program=program_with_torch, mps=MPS("/pipes", daemon=False))
    assert ("mps start" in " ".join(found.caps)) == (not simulated)


def test_a_daemon_is_looked_for_only_where_something_is_shared(daemon, monkeypatch):
    environ = {PIPES: daemon}
    assert daemon_for(Request.parse({"gpus": 1}), environ) is None
    assert daemon_for(Request.parse({"gpus": "1/4"}), environ) == MPS(daemon, daemon=True)
    simulated = {**environ, "JUPYTER_GPU_SIMULATE": "1xH200"}
    assert daemon_for(Request.parse({"gpus": "1/4"}), simulated) == MPS(daemon, daemon=True)


class TestExclusiveProcessMode:
    """Such a GPU takes one process: MPS's server can be it, and then shares can be had."""

    @pytest.fixture
    def machine(self):
        return FakeMachine(fake_gpu(0, exclusive=True))

    def lease(self, machine, folder, environ, gpus):
        from jupyter_gpu.adapters.place import Place as LeasePlace
        from jupyter_gpu.allocator import Acquisition, acquire_now
        from jupyter_gpu.core.leases import Owner

        request = Request.parse({"gpus": gpus}, default_wait=0)
        place = LeasePlace(folder, "given")
        return acquire_now(
            Acquisition(request, Owner("api"), environ, machine=machine, place=place)
        )

    def test_without_mps_nothing_of_it_can_be_had(self, machine, lease_directory):
        with pytest.raises(NoDeviceAvailable, match="in exclusive-process mode"):
            fake_lease(machine, lease_directory, gpus=1)
        # Not by a lease: a daemon of this user's may run on the computer that runs the tests.
        share = Request.parse({"gpus": "1/4"})
        (device,) = machine.inventory.devices
        found = on_card(device, share, simulated=True, through_mps=False)
        assert found.reason == "in exclusive-process mode, or closed to compute"
        assert on_card(device, share, simulated=True, through_mps=True).reason is None

    def test_with_a_daemon_shares_can_and_the_whole_cannot(
        self, machine, lease_directory, daemon
    ):
        environ = {PIPES: daemon}
        with self.lease(machine, lease_directory, environ, "1/4") as one:
            assert one.environment[PIPES] == daemon
            assert one.environment[LIMIT] == f"0={35 * 1024}M"
            assert "whatever library takes it" in one.record.caps[0]
            with self.lease(machine, lease_directory, environ, "3/4"):
                pass
        with pytest.raises(NoDeviceAvailable, match="in exclusive-process mode"):
            self.lease(machine, lease_directory, environ, 1)


def test_an_mps_server_on_a_shared_gpu_is_no_stranger(lease_directory, program):
    server = program(STAY, arguments=("nvidia-cuda-mps-server",))
    server.read()
    machine = FakeMachine(fake_gpu(0, processes=(Process(server.pid, GIB),)))
    with fake_lease(machine, lease_directory, gpus="1/4"):
        with fake_lease(machine, lease_directory, gpus="1/4"):
            pass


def test_the_cpus_near_the_devices_are_those_that_may_be_used():
    allowed = sorted(os.sched_getaffinity(0))
    places = tuple(
        Place(gpu.uuid, gpu.index, gpu.index, cpus)
        for gpu, cpus in zip(GPUS, [tuple(allowed[:1]), (10**5,)], strict=True)
    )
    topology = Topology(places, ())
    near = fitted(1, cpu_affinity="closest", topology=topology)
    assert near.cpus == (tuple(allowed[:1]) if len(allowed) > 1 else None)
    assert len(near.because) == 1
    far = fitted(1, devices=GPUS[1:], cpu_affinity="closest", topology=topology)
    assert far.cpus is None
    assert far.because
    assert far.because != near.because
    assert fitted(1, topology=topology).cpus is None
