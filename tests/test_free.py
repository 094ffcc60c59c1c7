"""``%gpu free`` in a real shell: over the double of a driver, and on a simulated machine."""

import json

import pytest
from doubles import gpu
from support_frozen import BEGIN
from support_shell import make_shell


def answers(double, code, **variables):
    """Run code in such a shell; returns what it printed, line by line."""
    double.write(gpu(0), gpu(1))
    return double.python(f"{BEGIN}\n{code}\nend()", **variables).splitlines()


def test_what_came_back_is_told_by_device_with_what_is_left(driver_double):
    code = """
machine(6 * GIB)
torch = torch_standin()
freeze()
print(flat(gpu("free")))
print(torch.told)
machine(6 * GIB)
torch.told.clear()
print(json.dumps(gpu("free --json")))
"""
    text, told, answer = answers(driver_double, code)
    assert text.startswith("3.0 GiB came back cuda:0 = physical 0 3.0 of 140.4 GiB 3.0 GiB back ")
    assert "torch: 2.0 GiB in tensors, 0 MiB cached" in text
    assert "Done: torch emptied its cache." in text
    assert "A restart of the kernel frees all that this kernel holds. Until then" in text
    assert "CUDA context keeps some hundreds of MB" in text
    assert told == "['empty_cache']"
    answer = json.loads(answer)
    assert (answer["schema"], answer["state"]) == (1, "frozen")
    assert answer["devices"][0]["came_back_bytes"] == 3 * 2**30
    assert answer["devices"][0]["torch_reserved_before_bytes"] == 5 * 2**30
    assert answer["devices"][0]["torch_reserved_after_bytes"] == 2 * 2**30
    assert answer["devices"][1]["came_back_bytes"] == 0
    assert answer["frameworks"] == [{"name": "torch", "done": "emptied its cache", "problem": None}]


def test_while_cuda_is_open_nothing_is_touched(driver_double):
    code = """
import gc
torch = torch_standin(initialised=False)
collected = []
gc.callbacks.append(lambda phase, info: collected.append(phase) if info["generation"] == 2 else None)
collected.clear()
print(flat(gpu("free")))
print(torch.told)
print(gpu("free --json")["state"], gpu("free --json")["frameworks"])
"""
    text, told, state = answers(driver_double, code)
    assert text == ("There is nothing to free: CUDA is open, so this kernel holds no GPU memory.")
    assert told == "[]"
    assert state == "open []"


def test_a_torch_that_has_not_begun_is_left_alone_though_the_driver_is_frozen(driver_double):
    code = """
torch = torch_standin(initialised=False)
freeze(context=False)
print(flat(gpu("free")))
print(torch.told)
"""
    text, told = answers(driver_double, code)
    assert text.startswith("Nothing came back cuda:0")
    assert "No framework here has begun to use CUDA." in text
    assert told == "[]"


def test_memory_of_others_is_told_and_never_promised_to_come_back(driver_double):
    code = """
torch_standin()
freeze()
sys.modules["torch"].cuda.empty_cache = lambda: None
machine(GIB, (os.getppid(), 78 * GIB))
print(flat(gpu("free")))
machine(0, used_bytes=8500 * 10**6)
del sys.modules["torch"]
print(flat(gpu("free")))
"""
    shared, unseen = answers(driver_double, code)
    assert "Note: cuda:0: 78.0 GiB of it is root's process " in shared
    assert "cuda:0: 7.9 GiB is in use by no process that can be seen from here" in unseen
    assert "Nothing in this kernel can free it" in unseen
    assert "empty_cache" not in unseen


def test_a_framework_that_fails_is_told_in_its_own_words(driver_double):
    code = """
torch = torch_standin()
freeze()
def fail():
    raise RuntimeError("CUDA error: an illegal memory access\\nmore")
torch.cuda.empty_cache = fail
print(flat(gpu("free")))
"""
    (text,) = answers(driver_double, code)
    assert "Done: torch could not: RuntimeError: CUDA error: an illegal memory access." in text


def test_real_tensors_are_held_by_their_names(driver_double):
    pytest.importorskip("torch")
    # A CPU build's tensors stand for those on a device; all else is as it is.
    code = """
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
from jupyter_gpu.adapters import held_tensors
held_tensors.held_tensors.__kwdefaults__["kind"] = "cpu"
torch.cuda.is_initialized = lambda: True
torch.cuda.empty_cache = lambda: None
torch.cuda.memory_allocated = torch.cuda.memory_reserved = lambda ordinal: 0
freeze()
shell.run_cell("import torch; x = torch.zeros(2**20); batches = [x[:10], {'a': torch.ones(2**19)}]")
print(flat(gpu("free")))
"""
    (text,) = answers(driver_double, code)
    assert "Still held by torch tensors: x, batches 4.0 MiB Tensor batches 2.0 MiB list" in text
    assert "What several names hold comes back when each of them is deleted." in text


def test_on_a_simulated_machine_there_is_nothing_to_free(eight_gpus):
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        assert "simulated" in repr(shell.run_line_magic("gpu", "free"))
        answer = shell.run_line_magic("gpu", "free --json")
    assert (answer["state"], answer["devices"]) == ("simulated", [])
