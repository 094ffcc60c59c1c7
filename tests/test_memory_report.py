"""What ``%gpu free`` says of the memory before and after."""

import dataclasses

from support_cli import GIB, device, inventory, kernel, lease, overview, using

from jupyter_gpu.core.devices import Process
from jupyter_gpu.core.held import Held, Holder
from jupyter_gpu.core.leases import Holdings
from jupyter_gpu.core.memory_report import (
    NOT_FROZEN,
    Emptied,
    MemoryReport,
    TorchMemory,
    free_answer,
    free_view,
    nothing_view,
)
from jupyter_gpu.core.render_text import as_text

FROZEN = kernel(state="frozen", in_force=(3, 1))


def machine(used, own=None, others=()):
    processes = (*using(4711, own), *others) if own is not None else others
    gpus = [device(index) for index in range(4)]
    gpus[3] = device(3, memory_used_bytes=used, processes=processes)
    seen = [(99, "carol", "python x.py")]
    return overview(inventory(*gpus), process=FROZEN, seen=seen)


def report(before, after, **what):
    return MemoryReport(before, after, **what)


def text(*arguments, **what):
    return as_text(free_view(report(*arguments, **what), FROZEN))


def flat(*arguments, **what):
    return " ".join(text(*arguments, **what).split())


def test_what_came_back_is_told_by_device():
    said = flat(
        machine(60 * GIB), machine(12 * GIB), torch_after={0: TorchMemory(11 * GIB, 12 * GIB)}
    )
    assert said.startswith("48.0 GiB came back cuda:0 = physical 3 12.0 of 140.4 GiB 48.0 GiB back")
    assert "torch: 11.0 GiB in tensors, 1.0 GiB cached cuda:1 = physical 1" in said


def test_what_others_took_meanwhile_is_not_counted_against_it():
    other = (Process(99, 50 * GIB),)
    said = flat(machine(10 * GIB, own=10 * GIB), machine(52 * GIB, own=2 * GIB, others=other))
    assert said.startswith("8.0 GiB came back")
    assert "Note: cuda:0: 50.0 GiB of it is carol's process 99 (python x.py)." in said


def test_what_cannot_be_measured_is_not_called_nothing():
    assert text(machine(None), machine(None)).startswith("0") is False
    gone = overview(inventory(device(0)), process=FROZEN)
    assert text(gone, gone).startswith("What came back cannot be measured here")
    assert text(machine(GIB), machine(GIB)).startswith("Nothing came back\n")


def test_small_amounts_are_told_in_mib():
    assert text(machine(52 * 2**20), machine(2**20)).startswith("51.0 MiB came back")


def test_what_holds_the_rest_stands_by_name_and_at_most_ten():
    many = tuple(Holder((f"x{n}",), (20 - n) * GIB, 1, "Tensor") for n in range(13))
    said = text(machine(GIB), machine(GIB), held=Held(many))
    assert "Still held by torch tensors:" in said
    assert "  x0  20.0 GiB  Tensor" in said
    assert "  x9  11.0 GiB  Tensor" in said
    assert "x10" not in said
    assert "And 3 more, 27.0 GiB." in said


def test_names_that_hold_together_and_tensors_without_a_name_are_explained():
    held = Held((Holder(("a", "b", "c", "d", "e"), GIB, 4, "Linear"),), 3, 2 * GIB)
    said = flat(machine(GIB), machine(GIB), held=held)
    assert "a, b, c and 2 more 1.0 GiB Linear, 4 tensors" in said
    assert "comes back when each of them is deleted" in said
    assert "3 tensors, 2.0 GiB, held by no variable: a traceback, a closure" in said


def test_what_torch_holds_beyond_tensors_is_told_where_it_is_much():
    memory = {0: TorchMemory(10 * GIB, 10 * GIB)}
    much = Held((Holder(("x",), 4 * GIB, 1, "Tensor"),))
    most = Held((Holder(("x",), 10 * GIB - 2**20, 1, "Tensor"),))
    held_inside = "is held inside torch"
    assert f"6.0 GiB more {held_inside}" in flat(
        machine(GIB), machine(GIB), torch_after=memory, held=much
    )
    assert held_inside not in flat(machine(GIB), machine(GIB), torch_after=memory, held=most)


def test_a_cache_that_cannot_be_emptied_is_explained():
    partly = {0: TorchMemory(GIB, 3 * GIB), 1: TorchMemory(GIB, GIB + 2**20)}
    said = flat(machine(GIB), machine(GIB), torch_after=partly)
    assert "torch keeps 2.0 GiB in blocks that are partly in use" in said
    little = {0: TorchMemory(GIB, GIB + 2**20)}
    assert "partly in use" not in flat(machine(GIB), machine(GIB), torch_after=little)


def test_the_lease_stays_where_there_is_one():
    without = machine(GIB)
    assert "the lease stays" not in flat(without, without)
    leased = dataclasses.replace(
        without,
        holdings=Holdings((lease("a", (3, 1)),)),
        process=dataclasses.replace(FROZEN, lease_id="a" * 15, renewable=True),
    )
    assert "this kernel holds, and the lease stays." in flat(leased, leased)


def test_an_incomplete_look_and_what_was_done_are_said():
    done = (Emptied("torch", "emptied its cache"), Emptied("CuPy", "could not", "OSError: x"))
    said = flat(machine(GIB), machine(GIB), emptied=done, held=Held(complete=False))
    assert "Done: torch emptied its cache; CuPy could not: OSError: x." in said
    assert "only the first were looked at" in said


def test_memory_without_a_process_is_never_promised():
    said = flat(machine(9 * GIB), machine(9 * GIB))
    assert "9.0 GiB is in use by no process that can be seen from here" in said
    assert "empty_cache" not in said


def test_where_nothing_is_touched_that_is_all_there_is():
    for state, sentence in NOT_FROZEN.items():
        view = nothing_view(kernel(state=state))
        assert " ".join(as_text(view).split()) == " ".join(sentence.split())
    same = overview(process=kernel())
    answer = free_answer(MemoryReport(same, same), kernel())
    assert (answer["state"], answer["devices"], answer["holders"]) == ("open", [], [])


def test_programs_get_bytes():
    held = Held((Holder(("x",), 5, 1, "Tensor"),), 1, 2)
    before, after = {0: TorchMemory(5, 9)}, {0: TorchMemory(5, 6)}
    answer = free_answer(
        report(machine(60), machine(12), torch_before=before, torch_after=after, held=held),
        FROZEN,
    )
    row = answer["devices"][0]
    assert (row["ordinal"], row["index"], row["came_back_bytes"]) == (0, 3, 48)
    assert (row["torch_reserved_before_bytes"], row["torch_reserved_after_bytes"]) == (9, 6)
    assert answer["devices"][1]["torch_allocated_after_bytes"] is None
    assert answer["unnamed"] == {"tensors": 1, "bytes": 2}


def test_it_keeps_to_its_width():
    held = Held((Holder(("n" * 200, "m" * 90), GIB, 3, "T" * 90),))
    said = text(machine(60 * GIB), machine(GIB), held=held, torch_after={0: TorchMemory(GIB, GIB)})
    assert max(map(len, said.splitlines())) <= 80
