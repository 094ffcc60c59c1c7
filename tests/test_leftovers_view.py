"""What release shows and answers, made by hand."""

import dataclasses

import pytest
from support_cli import GIB, NOW, SINCE, device, inventory, lease, overview, using

from jupyter_gpu.core.leftovers import Left, Leftovers, ProcessFacts
from jupyter_gpu.core.leftovers_view import (
    Ended,
    Released,
    found_view,
    question,
    release_answer,
    released_view,
)
from jupyter_gpu.core.render_text import as_text

DRAINING = lease("a", (0, 1), "alice", state="draining", pids=(812,))
WORKER = ProcessFacts(
    812, "alice", "python -m ipykernel_launcher", own=True, since=SINCE, start=5,
    memory_bytes=3 * GIB, lease=DRAINING, indices=(0, 1),
)  # fmt: skip
ORPHAN = ProcessFacts(
    90, "bob", "python -c from multiprocessing.spawn import spawn_main", indices=(3,)
)
ZOMBIE = Left(
    dataclasses.replace(WORKER, pid=7, command=None, sight="zombie", lease=None, indices=(2,)),
    "a zombie: it has ended, and its parent 3 (tini) has to reap it",
)


def found(*may_end, left=()):
    return as_text(found_view(Leftovers(may_end, tuple(left)), NOW))


def released(*ended, machine=None, leases=(), left=(), devices=None, **changes):
    seen = overview(machine, leases, **changes)
    devices = seen.inventory.devices[:2] if devices is None else devices
    return as_text(released_view(Released(ended, tuple(left), seen, tuple(devices)), NOW))


def test_what_would_be_ended_is_shown_with_all_that_tells_what_it_is():
    text = found(WORKER, ORPHAN, left=(ZOMBIE,))
    lines = text.splitlines()
    assert lines[0] == "2 processes left behind on GPU 0, 1, 3"
    assert lines[1].split() == ["Pid", "User", "Command", "Since", "GPU", "Memory", "Lease"]
    words = lines[2].split()
    assert words[0] == "812"
    assert words[1] == "alice"
    assert words[-6:] == ["10:42", "0,", "1", "3.0", "GiB", "a" * 15]
    assert lines[3].split()[-3:] == ["–", "3", "–"]
    assert "GPU 2: not ended: 7 of alice: a zombie: it has ended" in " ".join(text.split())
    assert all(len(line) <= 80 for line in lines)


def test_one_process_is_one():
    assert found(ORPHAN).startswith("1 process left behind on GPU 3")
    assert question(Leftovers((ORPHAN,))) == "End this process? [y/N] "
    assert question(Leftovers((ORPHAN, WORKER))) == "End these 2 processes? [y/N] "


def test_a_process_of_which_little_is_known_is_shown_without_it():
    text = found(ProcessFacts(5, None))
    assert text.startswith("1 process left behind on no GPU that is known")
    assert text.splitlines()[2].split() == ["5", "–", "–", "–", "–", "–"]


def test_nothing_to_release_says_so():
    assert found() == "Nothing is left behind"
    assert found(left=(ZOMBIE,)).startswith("Nothing can be released\n")


def test_what_is_free_then_comes_first():
    assert released(Ended(WORKER, "TERM")) == "1 process ended; GPU 0, GPU 1 are free"
    one = released(Ended(WORKER, "TERM"), devices=inventory().devices[:1])
    assert one == "1 process ended; GPU 0 is free"


def test_what_is_still_held_is_said_with_why():
    machine = inventory(device(0, processes=using(4411, GIB)), device(1), device(2))
    text = released(
        Ended(WORKER, "TERM"),
        Ended(ORPHAN, "KILL"),
        machine=machine,
        seen=[(4411, "carol", "python x.py")],
        leases=[lease("b", (1,), "bob")],
        left=(ZOMBIE,),
    )
    lines = text.splitlines()
    assert lines[0] == "2 processes ended"
    assert "Killed, because they did not end when asked: 90" in lines
    assert "GPU 0: used without a lease by carol: 4411 python x.py" in lines
    assert "GPU 1: bob (expb.ipynb)" in lines
    assert lines[-2].startswith("GPU 2: not ended: 7 of alice")


def test_that_none_has_ended_is_said():
    assert released(left=(ZOMBIE,), devices=()).startswith("No process has ended\n")


def test_what_ended_by_itself_is_not_claimed():
    assert "Had ended by themselves: 812" in released(Ended(WORKER)).splitlines()


@pytest.mark.parametrize(("process", "lease_id"), [(WORKER, "a" * 15), (ORPHAN, None)])
def test_the_answer_of_what_is_gone(process, lease_id):
    answer = release_answer((Ended(process, "KILL"),), ())
    assert answer == {
        "schema": 1,
        "released": [
            {
                "pid": process.pid,
                "user": process.user,
                "command": process.command,
                "lease": lease_id,
                "indices": list(process.indices),
                "signal": "KILL",
            }
        ],
        "left": [],
    }


def test_the_answer_of_what_is_left():
    hidden = Left(ProcessFacts(None, "bob", sight="hidden", indices=(1,)), "only bob may look")
    assert release_answer((), (hidden,))["left"] == [
        {"pid": None, "user": "bob", "command": None, "why": "only bob may look", "indices": [1]}
    ]
