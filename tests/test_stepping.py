"""Stepping an acquisition on an event loop: to its end, to the server's, or to a cancellation."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.faces.stepping import step_to_the_end
from jupyter_gpu.testing import FakeMachine, fake_gpu


@pytest.fixture
def kernel():
    app = SimpleNamespace(_stopping=False)
    manager = SimpleNamespace(parent=SimpleNamespace(parent=app, _pending_kernels={"k": 1}))
    return SimpleNamespace(parent=manager, kernel_id="k", log=logging.getLogger("stepping"))


@pytest.fixture
def asked(lease_directory):
    machine, place = FakeMachine(fake_gpu(0), fake_gpu(1)), Place(lease_directory, "given")

    def ask(**options):
        return Acquisition(Request(**options), Owner("api"), {}, machine=machine, place=place)

    return ask


async def test_it_gives_what_was_granted(asked, kernel):
    with asked(gpus=2) as acquisition:
        lease = await step_to_the_end(acquisition, kernel)
    assert len(lease.devices) == 2
    lease.release()


async def test_a_refusal_is_raised(asked, kernel):
    with asked(gpus=2) as first, asked(gpus=1, wait_seconds=0) as second:
        lease = await step_to_the_end(first, kernel)
        with pytest.raises(jupyter_gpu.NoDeviceAvailable):
            await step_to_the_end(second, kernel)
    lease.release()


async def test_who_waits_is_told_of_once_and_taken_off_the_list(asked, kernel, caplog):
    caplog.set_level("INFO")
    with asked(gpus=2) as first, asked(gpus=1, wait_seconds=60) as second:
        lease = await step_to_the_end(first, kernel)
        waiting = asyncio.ensure_future(step_to_the_end(second, kernel))
        while not second.waiting or "waits" not in caplog.text:
            await asyncio.sleep(0.005)
        lease.release()
        (await waiting).release()
    assert caplog.text.count("waits for 1 GPU") == 1
    assert kernel.parent.parent._pending_kernels == {}


async def test_what_is_granted_while_the_server_ends_is_given_back(asked, kernel):
    kernel.parent.parent.parent._stopping = True
    with asked(gpus=2) as acquisition:
        with pytest.raises(GPUError, match="The server is ending"):
            await step_to_the_end(acquisition, kernel)
    with asked(gpus=2) as again:
        again.step().release()


async def test_who_is_cancelled_gives_back_what_a_step_still_gets(asked, kernel, eventually):
    with asked(gpus=2) as acquisition:
        task = asyncio.ensure_future(step_to_the_end(acquisition, kernel))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(acquisition.close)
    for _ in range(3):
        await asyncio.sleep(0)
    with asked(gpus=2) as again:
        again.step().release()


async def test_who_has_hung_up_waits_no_longer_and_gets_nothing(asked, kernel):
    handler_module = pytest.importorskip("jupyter_server")
    hung_up = SimpleNamespace(closed=lambda: gone)
    connection = SimpleNamespace(connection=SimpleNamespace(stream=hung_up))
    gone = False

    async def start(acquisition):
        handler_module.CallContext.set(
            handler_module.CallContext.JUPYTER_HANDLER, SimpleNamespace(request=connection)
        )
        return await step_to_the_end(acquisition, kernel)

    with asked(gpus=2) as first, asked(gpus=1, wait_seconds=60) as second:
        lease = await step_to_the_end(first, kernel)
        waiting = asyncio.ensure_future(start(second))
        while not second.waiting:
            await asyncio.sleep(0.005)
        gone = True
        with pytest.raises(GPUError, match="hung up"):
            await waiting
    lease.release()
