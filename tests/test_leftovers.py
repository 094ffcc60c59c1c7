"""The rule: which of the processes that keep devices may be ended, and why not the others."""

import dataclasses

import pytest
from support_cli import lease

from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.leftovers import (
    ProcessFacts,
    chosen,
    is_offered,
    merged,
    sorted_out,
    why_not,
)

DRAINING = lease("a", (0, 1), "alice", state="draining")
IN_USE = lease("b", (2,), "bob")
IDLE = lease(
    "c",
    (3,),
    "bob",
    Owner("kernel", notebook="/x/fit.ipynb", idle_since="2026-12-01T09:00:00+00:00"),
)
COMMAND = lease("d", (3,), "bob", Owner("command", command="python train.py"))
PROGRAM = lease("e", (3,), "bob", Owner("api"))
WORKER = ProcessFacts(
    812, "alice", "python -m x", own=True, start=5, lease=DRAINING, indices=(0, 1)
)


def facts(**changes):
    return dataclasses.replace(WORKER, **changes)


THEIRS = {"own": False, "user": "bob"}


@pytest.mark.parametrize(
    ("changes", "mine", "roots"),
    [
        pytest.param({}, None, None, id="my worker of a dead kernel"),
        pytest.param({"lease": None}, None, None, id="my orphan"),
        pytest.param(THEIRS, "only bob and root may end it", None, id="another user's"),
        pytest.param(
            {"pid": None, "sight": "hidden", **THEIRS},
            "only bob and root may look at it",
            "only bob and root may look at it",
            id="another user's that is hidden",
        ),
        pytest.param(
            {"pid": None, "sight": "hidden", "own": False, "user": None},
            "only root may look at it",
            "only root may look at it",
            id="nobody knows whose",
        ),
        pytest.param(
            {"sight": "zombie", "parent": "its parent 7 (tini)"},
            "a zombie: it has ended, and its parent 7 (tini) has to reap it",
            "a zombie: it has ended, and its parent 7 (tini) has to reap it",
            id="a zombie",
        ),
        pytest.param(
            {"sight": "zombie"},
            "a zombie: it has ended, and its parent has to reap it",
            "a zombie: it has ended, and its parent has to reap it",
            id="a zombie of an unknown parent",
        ),
        pytest.param(
            {"sight": "outside", "pid": None, "user": None},
            "it has no process id here: end it where it runs",
            "it has no process id here: end it where it runs",
            id="outside the container",
        ),
        pytest.param(
            {"sight": "gone"},
            "it has ended, and the driver library still lists it",
            "it has ended, and the driver library still lists it",
            id="the driver is tidying up",
        ),
        pytest.param(
            {"role": "holder", "lease": IN_USE},
            "the lease of bob (expb.ipynb) is active: shut its kernel down",
            "the lease of bob (expb.ipynb) is active: shut its kernel down",
            id="a kernel in use",
        ),
        pytest.param(
            {"role": "holder", "lease": IDLE},
            "the lease of bob (fit.ipynb) is idle: shut its kernel down",
            "the lease of bob (fit.ipynb) is idle: shut its kernel down",
            id="an idle kernel",
        ),
        pytest.param(
            {"role": "holder", "lease": COMMAND},
            "the lease of bob (python train.py) is active: end that command",
            "the lease of bob (python train.py) is active: end that command",
            id="a command in use",
        ),
        pytest.param(
            {"role": "holder", "lease": PROGRAM},
            "the lease of bob (a program) is active: end that program, or let it release the lease",
            "the lease of bob (a program) is active: end that program, or let it release the lease",
            id="a program in use",
        ),
        pytest.param(
            {"role": "holder", "lease": IN_USE, "pid": None, "sight": "hidden"},
            "the lease of bob (expb.ipynb) is active: shut its kernel down",
            "the lease of bob (expb.ipynb) is active: shut its kernel down",
            id="a kernel in use in another container",
        ),
        pytest.param(
            {"role": "holder", "lease": None},
            "it uses a lease that is alive",
            "it uses a lease that is alive",
            id="a holder without words",
        ),
        pytest.param(
            {"role": "server", "lease": IN_USE},
            "the server that keeps the lease of bob (expb.ipynb): shut its kernel down there",
            "the server that keeps the lease of bob (expb.ipynb): shut its kernel down there",
            id="the server",
        ),
        pytest.param(
            {"asking": True},
            "it is this command, or has started it",
            "it is this command, or has started it",
            id="an ancestor of this command",
        ),
        pytest.param(
            {"role": "program"},
            "it runs on its own, without a lease, and is not left behind",
            "it runs on its own, without a lease, and is not left behind",
            id="my own program",
        ),
        pytest.param(
            {"role": "program", **THEIRS},
            "only bob and root may end it",
            "it runs on its own, without a lease, and is not left behind",
            id="another user's program",
        ),
    ],
)
def test_who_may_be_ended_and_why_not(changes, mine, roots):
    for root, why in ((False, mine), (True, roots)):
        found = why_not(facts(**changes), root=root)
        if why is None:
            assert found is None
        else:
            assert found is not None
            assert found.startswith(why)


@pytest.mark.parametrize("sight", ["zombie", "outside", "gone"])
@pytest.mark.parametrize("role", ["leftover", "holder", "server", "program"])
def test_what_does_not_live_here_is_never_ended_whatever_it_is(sight, role):
    for root in (True, False):
        for own in (True, False):
            assert why_not(facts(sight=sight, role=role, own=own), root=root)


@pytest.mark.parametrize("role", ["holder", "server", "program"])
@pytest.mark.parametrize("own", [True, False])
def test_only_leftovers_are_ever_ended(role, own):
    assert why_not(facts(role=role, own=own, lease=IN_USE), root=True)


@pytest.mark.parametrize("other", ["holder", "server"])
def test_of_two_facts_about_a_process_the_one_that_protects_counts(other):
    for pair in ((WORKER, facts(role=other, lease=IN_USE, indices=(2,))),) * 2:
        for order in (pair, pair[::-1]):
            (found,) = merged(order)
            assert (found.role, found.lease, found.indices) == (other, IN_USE, (0, 1, 2))
            assert sorted_out(order, root=True).may_end == ()


def test_a_worker_that_the_driver_lists_as_a_program_is_a_worker_with_its_memory():
    listed = [
        facts(role="program", lease=None, indices=(index,), memory_bytes=100) for index in (1, 2)
    ]
    (found,) = merged([*listed, WORKER])
    assert (found.role, found.lease) == ("leftover", DRAINING)
    assert (found.indices, found.memory_bytes) == ((0, 1, 2), 200)


def test_an_orphan_that_keeps_a_lease_has_that_lease():
    orphan = facts(lease=None, indices=(3,))
    for order in ((orphan, WORKER), (WORKER, orphan)):
        (found,) = merged(order)
        assert (found.lease, found.indices) == (DRAINING, (0, 1, 3))


def test_a_program_does_not_get_the_lease_of_another_fact_it_is_no_part_of():
    (found,) = merged([facts(role="holder", lease=None), facts(role="program", lease=IN_USE)])
    assert found.lease is None


def test_what_has_ended_meanwhile_or_asks_itself_stays_so_when_taken_together():
    zombie = facts(role="program", sight="zombie", parent="its parent 7 (tini)")
    (found,) = merged([WORKER, zombie])
    assert (found.sight, found.parent) == ("zombie", "its parent 7 (tini)")
    (found,) = merged([WORKER, facts(role="program", asking=True)])
    assert found.asking


def test_those_without_a_pid_are_not_taken_for_one():
    hidden = facts(pid=None, sight="hidden")
    assert len(merged([hidden, facts(pid=None, sight="outside"), WORKER])) == 3


def test_they_come_in_the_order_of_their_devices_and_pids():
    found = sorted_out(
        [facts(pid=9, indices=(2,)), facts(pid=8, indices=(2,)), facts(pid=10, indices=(0,))],
        root=False,
    )
    assert [one.pid for one in found.may_end] == [10, 8, 9]


@pytest.mark.parametrize(
    ("changes", "mine", "roots"),
    [
        ({}, True, True),
        ({"own": False}, False, True),
        ({"role": "holder"}, False, False),
        ({"role": "server"}, False, False),
        ({"role": "program"}, False, False),
        ({"role": "program", "sight": "zombie"}, True, True),
        ({"role": "program", "sight": "outside", "own": False}, False, True),
        ({"role": "program", "sight": "gone", "own": False}, False, False),
    ],
)
def test_who_names_nothing_is_told_of_what_is_left_behind(changes, mine, roots):
    assert is_offered(facts(**changes), root=False) is mine
    assert is_offered(facts(**changes), root=True) is roots


def test_only_what_is_meant_is_chosen():
    found = sorted_out([WORKER, facts(pid=5, own=False), facts(pid=6, own=False)], root=False)
    only = chosen(found, lambda process: process.pid in (812, 6))
    assert [one.pid for one in only.may_end] == [812]
    assert [one.process.pid for one in only.left] == [6]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "812 of alice (python -m x)"),
        ({"command": None}, "812 of alice"),
        ({"pid": None, "sight": "hidden"}, "a process of alice"),
        ({"pid": None, "user": None}, "a process of an unknown user"),
        ({"pid": 7, "user": None, "command": None}, "7 of an unknown user"),
        ({"pid": None, "sight": "outside"}, "a process outside this container"),
    ],
)
def test_a_process_has_words(changes, words):
    assert facts(**changes).words == words
