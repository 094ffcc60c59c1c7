from typing import get_args

import pytest
from support_cli import device, inventory, lease, overview
from support_failures import case, flat, seen

from jupyter_gpu.core.asked_ids import Asked
from jupyter_gpu.core.failure_words import failure_view
from jupyter_gpu.core.failures import Failure, Kind
from jupyter_gpu.core.history import Change, Frozen, History

FROZEN = History(frozen=Frozen(4, call="torch.cuda.is_available"))


def shown(kind, message="", *, value="1,2", cpu_build=None, **changes):
    found = case(kind, message, value, **changes)
    worker = "worker" in message
    failure = Failure(kind, message, "torch", found.failure.libraries, cpu_build, worker)
    return flat(failure_view(failure, found.overview, lambda: iter(())))


@pytest.mark.parametrize("kind", sorted(get_args(Kind)))
@pytest.mark.parametrize("state", ["open", "frozen", "absent", "forked", "simulated"])
def test_every_kind_has_words_in_every_state(kind, state):
    given = (1, 2) if state == "frozen" else None
    found = seen(state=state, in_force=given, history=FROZEN)
    failure = Failure(kind, "invalid literal for int() with base 10: '1'", "torch", ("peft",))
    view = failure_view(failure, found, lambda: iter(()))
    if view is not None:
        text = flat(view)
        assert ("simulated" in text) == (state == "simulated") or kind in (
            "forked",
            "tensorflow late",
            "memory growth",
            "jax fractions",
        )
        assert text.count("peft") <= 1


def test_an_overview_without_a_kernel_has_none():
    assert failure_view(Failure("no gpu", ""), overview(), lambda: iter(())) is None


def test_the_ids_are_looked_for_only_where_they_matter():
    def never():
        raise AssertionError

    assert failure_view(Failure("forked", ""), seen(), never) is not None
    ids = iter([Asked((2,), "cuda:{}")])
    view = failure_view(Failure("device id", ""), seen("2"), lambda: ids)
    assert view.title.startswith("cuda:2: this kernel sees 1 device")


def test_a_build_without_cuda_finds_no_gpu_for_that_reason():
    assert "build without CUDA" in shown("no gpu", cpu_build=True)
    assert "build without CUDA" not in shown("no gpu", cpu_build=False)


def test_a_fork_of_a_kernel_that_uses_cuda():
    text = shown("forked", state="frozen", in_force=(1, 2), history=FROZEN)
    assert text == (
        "CUDA is in use in this kernel, so processes forked from it cannot use it. "
        "Cell [4] (torch.cuda.is_available) initialised CUDA here. "
        'Start the workers anew instead: multiprocessing.get_context("spawn") '
        "What they run has to stand in a .py file then: they do not see the cells. "
        "Or keep CUDA out of them: let workers return CPU tensors."
    )
    loader = "Caught RuntimeError in DataLoader worker process 0."
    assert 'DataLoader(…, multiprocessing_context="spawn")' in shown("forked", loader)


def test_an_initialization_that_fails_in_a_worker_is_a_fork():
    worker = "Caught RuntimeError in DataLoader worker process 0.\nCUDA error: initialization error"
    assert "process forked from one that has used it" in shown("initialization", worker)
    assert "process forked from one that has used it" in shown("initialization", state="forked")
    assert "the driver refused. In a process forked" in shown("initialization")


def test_an_unknown_error_does_not_blame_a_variable_that_did_not_change():
    text = shown("unknown error", value="0")
    assert text.startswith(
        'CUDA_VISIBLE_DEVICES did not change since the start: it is not the cause. It is "0".'
    )
    assert "jupyter gpu doctor" in text


def test_an_unknown_error_after_a_change_names_the_cell():
    history = History(changes=(Change(5, "0", "1", "%env"),))
    text = shown("unknown error", value="1", launched="0", history=history)
    assert text.startswith('Cell [5] changed CUDA_VISIBLE_DEVICES from "0" to "1" (%env).')
    assert "jupyter gpu doctor" in text
    unseen = shown("unknown error", value="1", launched=None)
    assert unseen.startswith(
        'CUDA_VISIBLE_DEVICES was not set when this kernel started, and is "1" now.'
    )


def test_a_count_that_changed_names_the_cell():
    history = History(changes=(Change(5, "0", "1,2", "%env"),))
    text = shown("count changed", state="frozen", in_force=(0,), history=history)
    assert "Cell [5] changed CUDA_VISIBLE_DEVICES in between." in text
    assert "CUDA's devices here: 0 = physical 0" in text
    assert "usually changed in between" in shown("count changed")


def test_a_device_that_is_busy():
    machine = inventory(device(0, exclusive=True), device(1), device(2, problem="GPU 2 is lost."))
    text = shown("busy", value=None, machine=machine, leases=[lease("b", (1,), "bob")])
    assert "cuda:0 (physical 0) is in exclusive-process mode" in text
    assert "cuda:1 (physical 1): bob (expb.ipynb)" in text


def test_links_and_ranks():
    assert "%gpu topo" in shown("peer access")
    text = shown("same gpu", state="frozen", in_force=(1, 2))
    assert "This kernel sees 2: 0 = physical 1 · 1 = physical 2." in text
    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))' in text
    assert "This kernel sees" not in shown("same gpu", value="-1")


def test_a_torch_with_cuda_is_not_called_a_build_without_it():
    failure = Failure("cpu build", "my torch extension requires CUDA support", cpu_build=False)
    assert failure_view(failure, seen(), lambda: iter(())) is None
