"""The provisioner under jupyter_client's own managers: what comes in, goes out, and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest
from jupyter_client.manager import AsyncKernelManager
from traitlets.config import Config

from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.faces.refused import KernelRefused
from jupyter_gpu.provisioner import GPUProvisioner

pytestmark = pytest.mark.usefixtures("eight_gpus")


def holdings():
    with LeaseStore(find_place(os.environ, simulated=True)) as store:
        return store.holdings()


async def settled(manager):
    """Close what a manager of the tests keeps open."""
    await manager.cleanup_resources()
    manager.cleanup_connection_file()


@pytest.fixture
async def manager():
    made = AsyncKernelManager(kernel_name="pytorch-1gpu")
    yield made
    if made.has_kernel:
        await made.shutdown_kernel(now=True)
    await settled(made)


async def test_a_start_puts_the_devices_into_a_copy_of_what_came_in(manager):
    environ = dict(os.environ)
    before = dict(environ)
    await manager.start_kernel(env=environ)
    assert environ == before
    (lease,) = holdings().leases
    assert lease.record.indices == (0,)
    assert lease.pids == (manager.provisioner.pid,)
    assert lease.record.owner.kernel_id == manager.kernel_id


async def test_an_environment_may_be_absent(manager):
    await manager.start_kernel()
    assert len(holdings().leases) == 1


async def test_cleanup_may_come_twice(manager):
    await manager.start_kernel()
    provisioner = manager.provisioner
    await manager.shutdown_kernel(now=True)
    await provisioner.cleanup(restart=False)
    assert not holdings().leases


async def test_three_restarts_keep_lease_and_device(manager):
    await manager.start_kernel()
    (first,) = holdings().leases
    for _ in range(3):
        await manager.restart_kernel(now=True)
        (lease,) = holdings().leases
        assert (lease.record.id, lease.record.uuids) == (first.record.id, first.record.uuids)
        assert lease.pids == (manager.provisioner.pid,)


async def test_a_crash_without_a_restarter_frees_the_device_and_a_restart_gets_it_again(
    manager, eventually
):
    await manager.start_kernel()
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    eventually(lambda: not holdings().leases)
    await manager.restart_kernel(now=True)
    (lease,) = holdings().leases
    assert lease.record.indices == (0,)


async def test_a_start_that_is_cancelled_while_it_waits_leaves_no_ticket(manager, eventually):
    holder = AsyncKernelManager(kernel_name="python3", config=options(gpus="all"))
    provision_by_default(holder)
    await holder.start_kernel()
    try:
        manager.config = options(wait="60s")
        start = asyncio.ensure_future(manager.start_kernel())
        await asyncio.to_thread(eventually, lambda: holdings().waiters)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not holdings().waiters
    finally:
        await holder.shutdown_kernel(now=True)
        await settled(holder)


def options(**given):
    return Config({"GPUProvisioner": given})


async def test_server_configuration_sets_what_a_kernelspec_leaves_open():
    manager = AsyncKernelManager(kernel_name="python3", config=options(gpus=3))
    provision_by_default(manager)
    await manager.start_kernel()
    try:
        (lease,) = holdings().leases
        assert lease.record.indices == (0, 1, 2)
    finally:
        await manager.shutdown_kernel(now=True)
        await settled(manager)


def provision_by_default(manager):
    stanza = {"provisioner_name": "gpu-provisioner", "config": {}}
    manager.kernel_spec.metadata["kernel_provisioner"] = stanza


async def test_a_misspelt_option_of_the_configuration_is_refused_by_name(manager):
    manager.config = options(gpuss=1)
    with pytest.raises(KernelRefused, match="There is no option 'gpuss'"):
        await manager.start_kernel()
    assert not holdings().leases


async def test_a_failure_of_jupyter_clients_own_preparation_gives_the_device_back(manager):
    manager.ip = "192.0.2.1"
    with pytest.raises(RuntimeError, match="local interface"):
        await manager.start_kernel()
    assert not holdings().leases


async def test_a_provisioner_that_nobody_keeps_ends_its_lease(manager):
    provisioner = GPUProvisioner(
        kernel_id="abc", kernel_spec=manager.kernel_spec, parent=manager, gpus=2
    )
    await provisioner.pre_launch()
    assert len(holdings().leases[0].record.uuids) == 2
    del provisioner
    gc.collect()
    assert not holdings().leases


def test_every_option_is_a_trait_with_help():
    traits = GPUProvisioner.class_traits(config=True)
    for name in ("gpus", "devices", "min_free_memory", "model", "wait", "identifiers"):
        assert traits[name].help


async def test_no_gpu_means_minus_one_and_no_lease():
    manager = AsyncKernelManager(kernel_name="pytorch-cpu")
    await manager.start_kernel()
    try:
        environ = Path(f"/proc/{manager.provisioner.pid}/environ").read_text()
        assert "CUDA_VISIBLE_DEVICES=-1\0" in environ
        assert not holdings().leases
    finally:
        await manager.shutdown_kernel(now=True)
        await settled(manager)


async def test_a_broken_simulation_never_keeps_a_kernel_without_gpus_from_starting(monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "4xNothing")
    manager = AsyncKernelManager(kernel_name="pytorch-cpu")
    await manager.start_kernel()
    await manager.shutdown_kernel(now=True)
    await settled(manager)
    refused = AsyncKernelManager(kernel_name="pytorch-1gpu")
    with pytest.raises(KernelRefused, match="no model 'Nothing'"):
        await refused.start_kernel()
    await settled(refused)
