import pytest
from support_cli import GIB, device, inventory, lease
from support_failures import case, flat

from jupyter_gpu.core.devices import Inventory, Process
from jupyter_gpu.core.history import History, Imported
from jupyter_gpu.core.out_of_memory import out_of_memory_view, shares_of
from jupyter_gpu.core.render_text import as_text

TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 139.80 GiB of "
    "which 512.00 MiB is free."
)
OWN, OTHER = 4711, 4411
SEEN = [(OWN, "me", "python -m ipykernel"), (OTHER, "carol", "python train.py")]


def machine(*processes, used=None, physical=3):
    total = sum(memory or 0 for _, memory in processes)
    full = device(
        physical,
        memory_used_bytes=total if used is None else used,
        processes=tuple(Process(pid, memory) for pid, memory in processes),
    )
    return inventory(*(device(n) for n in range(physical)), full)


def shown(processes, *, message=None, used=None, value="3", **changes):
    changes = {"seen": SEEN, "machine": machine(*processes, used=used), **changes}
    message = TORCH.format(0) if message is None else message
    return flat(out_of_memory_view(case("out of memory", message, value, **changes)))


GB = 10**9
BOTH = [(OWN, 61 * GIB), (OTHER, 78 * GIB + 9 * GIB // 10)]


def test_who_is_on_the_device_with_how_much():
    text = shown(BOTH)
    assert text.startswith(
        "cuda:0 (physical 3) has 140.4 GiB: 61.0 this kernel, "
        "78.9 carol's process 4411 (no lease), 0.5 free."
    )
    assert "Only its owner can free what another process holds." in text
    assert "Free on this machine: physical 0, 1, 2. %gpu use 1 --restart" in text
    assert "%gpu free" not in text


def test_another_process_is_named_by_its_lease():
    held = lease("b", (3,), "carol", pids=(OTHER,))
    assert "78.9 carol's process 4411 (expb.ipynb)" in shown(BOTH, leases=[held])


def test_a_worker_of_this_kernels_lease_is_its_own():
    held = lease("a", (3,), "me", pids=(OWN, OTHER))
    text = shown(BOTH, leases=[held], lease_id="a" * 15)
    assert "61.0 this kernel, 78.9 this kernel's process 4411, 0.5 free" in text
    assert "%gpu free" in text


def test_where_this_kernel_alone_holds_it_that_can_be_freed():
    text = shown([(OWN, 139 * GIB)])
    assert "139.0 this kernel, 1.4 free." in text
    assert "see what holds the rest: %gpu free" in text


def test_memory_of_no_visible_process_is_said_and_nothing_is_promised():
    text = shown([], used=85 * GIB // 10)
    assert "8.5 no process that can be seen, 131.9 free" in text
    assert "nothing in this kernel can free" in text
    assert "empty_cache" not in text
    assert "%gpu free" not in text


def test_the_drivers_own_few_hundred_megabytes_are_nobodys():
    assert "no process that can be seen" not in shown([], used=300 * 2**20)


def test_a_process_outside_this_container_has_no_name():
    text = shown([(99, 8 * GIB)], seen=[])
    assert "8.0 a process that cannot be seen from here" in text
    assert "nothing in this kernel can free" in text


def test_in_a_container_what_may_be_ours_is_not_called_anothers():
    text = shown([(99, 8 * GIB)], seen=[], contexts=(0,))
    assert "How much of it is this kernel's cannot be told" in text
    assert "nothing in this kernel can free" not in text


def test_unknown_amounts_are_not_zero():
    text = shown([(OTHER, None)], used=8 * GIB)
    assert "– carol's process 4411 (no lease)" in text
    assert "no process that can be seen" not in text
    bare = inventory(device(0, memory_total_bytes=None, memory_used_bytes=None))
    assert "has – GiB: nobody on it can be seen." in shown([], value="0", machine=bare)


@pytest.mark.parametrize(
    "message",
    [
        TORCH.format(1),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 14.76 GiB total capacity; "
            "13.01 GiB already allocated; 11.75 MiB free; 13.04 GiB reserved in total by PyTorch)"
        ),
        (
            "OOM when allocating tensor with shape[9] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc [Op:Mul]"
        ),
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3B) on device ordinal 1",
        "ResourceExhaustedError: Out of memory error on GPU 1. Cannot allocate 9.000000GB memory",
    ],
)
def test_the_device_is_the_one_that_the_message_names(message):
    text = shown(BOTH, message=message, value="0,3")
    assert text.startswith("cuda:1 (physical 3)")
    assert "cuda:0" not in text


def test_where_it_names_none_all_are_shown():
    text = shown(BOTH, message="Out of memory allocating 8,589,934,592 bytes", value="0,3")
    assert text.startswith("cuda:0 (physical 0) has 140.4 GiB: 140.4 free. cuda:1 (physical 3)")
    many = inventory(*(device(n) for n in range(8)))
    text = shown([], message="CUDA error: out of memory", value=None, machine=many)
    assert "cuda:3 (physical 3)" in text
    assert "cuda:4" not in text


def test_a_cap_is_said_to_be_torchs_cache_only():
    text = shown([(OWN, 14 * GIB)], message=f"{TORCH.format(0)} 13.98 GiB allowed; Of the")
    assert "A cap lets torch have 13.98 GiB of it. It counts torch's cache only" in text
    assert "%gpu free" not in text


def test_an_allocation_that_can_never_fit_and_one_that_would_now():
    huge = "CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity"
    assert "200.00 GiB was tried: more than the whole device." in shown([], message=huge)
    text = shown([(OWN, GIB)])
    assert "An allocation of 2.00 GiB failed; the numbers above are of now" in text
    assert "of now" not in shown(BOTH)


def test_jaxs_own_reserve_is_explained_where_it_is_in_use():
    held, jax = [(OWN, 105 * GIB)], History((Imported("jax", "JAX", "0.11.2", 1),))
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in shown(held, framework="JAX")
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in shown(held, history=jax)
    assert "XLA" not in shown(held)
    assert "XLA" not in shown([(OWN, GIB)], framework="JAX")


def test_nothing_is_said_of_devices_that_cannot_be_seen():
    assert out_of_memory_view(case("out of memory", machine=Inventory("none"))) is None


def test_a_simulated_machine_is_called_one():
    assert "simulated machine" in shown(BOTH, state="simulated")


def test_lines_fit_and_shares_are_in_order():
    found = case("out of memory", TORCH.format(0), "3", machine=machine(*BOTH[::-1]), seen=SEEN)
    assert [
        s.own for s in shares_of(found.overview.inventory.devices[3], found.overview, found.process)
    ] == [True, False]
    assert all(len(line) <= 80 for line in as_text(out_of_memory_view(found)).split("\n"))
