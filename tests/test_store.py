"""The lease store: one lock file and the records beside it."""

import dataclasses
import os
import time

import pytest

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import STALLED_SECONDS, records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    LEASE_IDS,
    QUEUE,
    Range,
    device_range,
    lease_byte,
    nested_byte,
    new_lease_id,
)
from jupyter_gpu.core.leases import Owner, ProcessRef, Record

SINCE = "2026-12-01T09:00:00+00:00"
EVERYTHING = Range(0, (1 << 63) - 1)
KNOWN = tuple(f"g{i}" for i in range(8))


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def store(place):
    with LeaseStore(place, write=True) as opened:
        yield opened


@pytest.fixture
def hostile(place, store):
    """A function that locks a range of the lock file as a stranger."""
    fd = os.open(place.lock_path, os.O_RDWR | os.O_CLOEXEC)
    yield lambda where: locks.try_lock(fd, where)
    os.close(fd)


@pytest.fixture
def leased(store):
    """A function that takes a lease and writes its record; given up after the test."""
    claims = []

    def take(*uuids, ancestors=(), publish=True, claims_too=(), **owner):
        claim = store.new_claim(ancestors)
        claims.append(claim)
        assert claim.take(uuids)
        record = Record(
            id=claim.id,
            owner=Owner(**{"kind": "kernel", "processes": (myself(),), **owner}),
            since=SINCE,
            uuids=(*uuids, *claims_too),
            indices=tuple(int(uuid[1:]) for uuid in uuids),
            ancestors=ancestors,
        )
        if publish:
            store.publish(claim, record)
        return claim

    yield take
    for claim in claims:
        store.withdraw(claim)


def myself():
    return processes.reference(os.getpid())


def gone():
    return ProcessRef(2**22 + 1, 1, processes.pid_namespace())


def waiting(store, claim, *, ancestors=()):
    record = Record(
        id=claim.id,
        owner=Owner("api"),
        since=SINCE,
        ticket=claim.line_up(),
        could_use=("g0",),
        ancestors=ancestors,
    )
    store.publish(claim, record)


def test_an_empty_place_has_nothing(store):
    holdings = store.holdings(KNOWN)
    assert (holdings.leases, holdings.waiters, holdings.unclaimed) == ((), (), ())
    assert store.is_free((), "g0")
    assert not store.anyone_waits()


def test_a_place_that_is_not_there_has_nothing_and_is_not_made(place):
    with LeaseStore(place) as reader:
        assert reader.holdings(KNOWN).leases == ()
        assert reader.is_free((), "g0")
        assert not reader.is_live(new_lease_id())
        assert reader.own_live_record(new_lease_id()) is None
        assert reader.kept_by(new_lease_id()) == ()
        assert reader.recent_devices("a.ipynb") == ()
        assert reader.supported
        reader.sweep()
    assert not place.directory.exists()


def test_closing_twice_does_nothing_more(place):
    opened = LeaseStore(place, write=True)
    opened.close()
    opened.close()


def test_a_lease_is_seen_with_its_holder(store, leased):
    claim = leased("g1", "g0", notebook="a.ipynb")
    (lease,) = store.holdings(KNOWN).leases
    assert lease.record.id == claim.id
    assert lease.record.uuids == ("g1", "g0")
    assert lease.user == processes.user_name(os.getuid())
    assert (lease.state, lease.pids, lease.note) == ("active", (os.getpid(),), None)
    assert not store.is_free((), "g0")
    assert store.is_free((), "g2")


def test_a_reader_sees_it_without_writing_anything(place, leased):
    leased("g0")
    before = place.lock_path.stat()
    with LeaseStore(place) as reader:
        assert len(reader.holdings(KNOWN).leases) == 1
        assert not reader.is_free((), "g0")
    assert place.lock_path.stat().st_mtime_ns == before.st_mtime_ns


def test_leases_come_in_the_order_of_their_devices(store, leased):
    leased("g3")
    leased("g1")
    leased("g2")
    indices = [lease.record.indices for lease in store.holdings().leases]
    assert indices == [(1,), (2,), (3,)]


def test_a_withdrawn_lease_leaves_nothing(place, store, leased):
    store.withdraw(leased("g0"))
    assert store.holdings(KNOWN).leases == ()
    assert os.listdir(records_path(place)) == []
    assert locks.first_lock(store._fd, EVERYTHING) is None


def test_withdrawing_twice_does_nothing_more(store, leased):
    claim = leased("g0")
    store.withdraw(claim)
    store.withdraw(claim)
    store.publish(claim, Record(id=claim.id, owner=Owner("api"), since=SINCE))
    assert store.holdings(KNOWN).leases == ()


def test_a_record_without_a_lock_is_no_lease(store, leased, place):
    claim = leased("g0")
    claim.close()
    assert len(os.listdir(records_path(place))) == 1
    assert store.holdings(KNOWN).leases == ()


def test_a_device_that_is_locked_and_that_nobody_claims_is_told_apart(store, leased):
    leased("g0", publish=False)
    leased("g1")
    holdings = store.holdings(KNOWN)
    assert holdings.unclaimed == ("g0",)
    assert [lease.record.uuids for lease in holdings.leases] == [("g1",)]


def test_a_lie_about_a_device_that_is_free_is_shown_as_such(store, leased):
    leased("g0", claims_too=("g5",))
    (lease,) = store.holdings(KNOWN).leases
    assert lease.note == "this record claims a device it does not hold"


def test_two_who_claim_one_device_are_both_shown_as_doubtful(store, leased):
    leased("g0")
    leased("g1", claims_too=("g0",))
    leased("g2")
    notes = [lease.note for lease in store.holdings(KNOWN).leases]
    assert notes == ["another lease claims the same device; both cannot be true"] * 2 + [None]


def test_a_hand_over_inside_one_server_is_no_contradiction(store, leased):
    leased("g0", keeper=myself())
    leased("g1", keeper=myself(), claims_too=("g0",))
    assert [lease.note for lease in store.holdings(KNOWN).leases] == [None, None]


def test_a_nested_lease_does_not_contradict_the_one_above(store, leased):
    top = leased("g0")
    leased("g0", ancestors=(top.id,))
    leases = store.holdings(KNOWN).leases
    assert [lease.note for lease in leases] == [None, None]
    assert not store.is_free((top.id,), "g0")


def test_a_device_below_a_dead_ancestor_is_not_free(store, leased):
    top = leased("g0")
    inner = leased("g0", ancestors=(top.id,))
    store.withdraw(top)
    assert not store.is_free((), "g0")
    store.withdraw(inner)
    assert store.is_free((), "g0")


def test_a_lease_whose_processes_are_gone_is_draining_and_its_keeper_named(store, leased):
    leased("g0", processes=(gone(),))
    (lease,) = store.holdings(KNOWN).leases
    assert lease.state == "draining"
    assert lease.pids == (os.getpid(),)
    assert f"kept by process {os.getpid()} (" in lease.note


def test_a_lease_that_a_living_server_would_restart_is_active(store, leased):
    leased("g0", processes=(gone(),), keeper=myself())
    assert store.holdings(KNOWN).leases[0].state == "active"


def test_a_kernel_is_idle_only_as_long_as_its_server_can_tell(store, leased):
    leased("g0", keeper=myself(), idle_since="2001-01-01T00:00:00+00:00")
    leased("g1", keeper=gone(), idle_since="2001-01-01T00:00:00+00:00")
    leased("g2", idle_since="2001-01-01T00:00:00+00:00")
    states = [lease.state for lease in store.holdings(KNOWN).leases]
    assert states == ["idle", "active", "active"]


def test_processes_of_another_pid_namespace_are_believed(store, leased):
    leased("g0", processes=(ProcessRef(5, 1, 17),))
    (lease,) = store.holdings(KNOWN).leases
    assert (lease.state, lease.pids) == ("active", ())  # a pid of there means nothing here


def test_only_the_processes_that_live_are_named(store, leased):
    leased("g0", processes=(gone(), myself()))
    (lease,) = store.holdings(KNOWN).leases
    assert (lease.state, lease.pids) == ("active", (os.getpid(),))


KEEP = "import sys; print('ready'); sys.stdin.read()"


def test_what_workers_outlive_keeps_its_record(store, leased, program):
    claim = leased("g0", processes=(gone(),), keeper=myself(), notebook="a.ipynb")
    worker = program(KEEP, pass_fds=(claim.fd,))
    worker.read()
    store.withdraw(claim)
    (lease,) = store.holdings(KNOWN).leases
    assert (lease.state, lease.pids) == ("draining", (worker.pid,))
    assert lease.record.owner.notebook == "a.ipynb"
    assert lease.record.owner.keeper is None
    assert not store.is_free((), "g0")
    worker.kill()
    assert store.is_free((), "g0")
    assert store.holdings(KNOWN).leases == ()


def test_a_program_that_hands_its_lease_on_leaves_the_heir_in_its_record(store, leased, program):
    claim = leased("g0")
    heir = program(KEEP, pass_fds=(claim.fd,))
    heir.read()
    store.withdraw(claim)
    (lease,) = store.holdings(KNOWN).leases
    assert (lease.state, lease.pids) == ("draining", (heir.pid,))
    assert lease.note.startswith(f"kept by process {heir.pid}")
    assert store.kept_by(claim.id) == (processes.reference(heir.pid),)
    heir.kill()


def test_more_than_three_keepers_are_counted(store, leased, program):
    claim = leased("g0", processes=(gone(),))
    workers = [program(KEEP, pass_fds=(claim.fd,)) for _ in range(4)]
    for worker in workers:
        worker.read()
    note = store.holdings(KNOWN).leases[0].note
    assert note.endswith(" and 2 more")
    assert {process.pid for process in store.kept_by(claim.id)} == {
        os.getpid(),
        *(worker.pid for worker in workers),
    }


def test_a_waiter_is_seen_in_the_order_of_tickets(store, leased):
    first, second = leased(publish=False), leased(publish=False)
    waiting(store, first)
    waiting(store, second)
    holdings = store.holdings(KNOWN)
    assert [waiter.record.ticket for waiter in holdings.waiters] == [0, 1]
    assert holdings.leases == ()
    assert store.anyone_waits()
    first.leave_queue()
    assert [waiter.record.id for waiter in store.holdings(KNOWN).waiters] == [second.id]


def test_a_waiter_that_has_not_looked_for_a_while_is_stalled(place, store, leased):
    claim = leased(publish=False)
    waiting(store, claim)
    assert not store.holdings(KNOWN).waiters[0].stalled
    late = time.time() - STALLED_SECONDS - 1
    os.utime(records_path(place) / f"waiting-{claim.ticket}.json", (late, late))
    assert store.holdings(KNOWN).waiters[0].stalled
    store.show_life(claim)
    assert not store.holdings(KNOWN).waiters[0].stalled


def test_dead_records_are_swept_and_living_ones_are_not(place, store, leased):
    living = leased("g0")
    records = records_path(place)
    for name in (f"{new_lease_id()}.json", f".{new_lease_id()}.json.0123abcd"):
        (records / name).write_text("{}")
    (records / f".{living.id}.json.0123abcd").write_text("being written")
    store.sweep()
    left = sorted(os.listdir(records))
    assert left == sorted([f"{living.id}.json", f".{living.id}.json.0123abcd"])


def test_only_a_single_byte_is_a_lease_id(store, hostile):
    hostile(Range(LEASE_IDS.start + 100, 2))
    assert store.holdings(KNOWN).leases == ()


def test_a_locked_range_of_ids_is_a_sentence(store, hostile):
    hostile(LEASE_IDS)
    with pytest.raises(StoreError, match=r"somebody has locked the lease ids .* names the proc"):
        store.new_claim()
    assert store.holdings(KNOWN).leases == ()


def test_a_locked_queue_without_waiters_is_an_empty_queue(store, hostile):
    hostile(QUEUE)
    assert store.anyone_waits()
    assert store.holdings(KNOWN).waiters == ()


def test_a_device_that_somebody_marks_as_nested_is_not_free(store, hostile):
    hostile(nested_byte(None, "g0"))
    assert not store.is_free((), "g0")
    assert store.holdings(KNOWN).unclaimed == ("g0",)


def test_a_part_of_a_device_is_enough_for_it_not_to_be_free(store, hostile):
    hostile(Range(device_range(None, "g0").start + 27_719, 1))
    assert not store.is_free((), "g0")


@pytest.mark.parametrize(
    "lie",
    [
        {"ticket": 1 << 70},
        {"ticket": -1},
        {"uuids": ("",)},
        {"uuids": ("g0",) * 5000},
        {"ancestors": ("f" * 15,)},
        {"indices": (1 << 62, -5)},
        {"since": "x" * 9000},
        {"owner": Owner("api", processes=(ProcessRef(1, 1),) * 500)},
    ],
)
def test_a_lying_record_crashes_no_reader_and_frees_nothing(store, leased, lie):
    claim = leased("g0")
    honest = Record(id=claim.id, owner=Owner("api"), since=SINCE, uuids=("g0",), indices=(0,))
    store.publish(claim, dataclasses.replace(honest, **lie))
    holdings = store.holdings(KNOWN)
    for lease in holdings.leases:
        assert lease.as_json()
    assert not store.is_free((), "g0")
    assert len(holdings.leases) + len(holdings.unclaimed) >= 1


def test_the_record_of_ones_own_living_lease_is_read(store, leased):
    claim = leased("g0")
    assert store.own_live_record(claim.id).uuids == ("g0",)
    store.withdraw(claim)
    assert store.own_live_record(claim.id) is None


@pytest.mark.parametrize("name", ["", "x", "../lock", "a" * 16])
def test_what_is_no_lease_id_is_not_alive(store, name):
    assert not store.is_live(name)
    assert store.own_live_record(name) is None


def test_the_lease_id_says_when_it_is_alive(store, leased, place):
    claim = leased("g0")
    assert store.is_live(claim.id)
    assert locks.first_lock(store._fd, lease_byte(claim.id)) is not None
    store.withdraw(claim)
    assert not store.is_live(claim.id)


def test_devices_of_a_notebook_are_remembered(store):
    store.remember_devices("a.ipynb", ("g2",))
    store.remember_devices(None, ("g3",))
    assert store.recent_devices("a.ipynb") == ("g2",)
    assert store.recent_devices(None) == ()
