"""The checks of a kernel, its lease, MPS, and what is left on the GPUs."""

import dataclasses

import pytest
from support_cli import GIB, device, inventory, kernel, lease, overview, using

from jupyter_gpu.core.facts import MPS, DeviceUser, Facts
from jupyter_gpu.core.history import Change, Frozen, History
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner, ProcessRef
from jupyter_gpu.core.overview import Leasing, SeenProcess
from jupyter_gpu.core.process_checks import (
    kernel_checks,
    leftover_checks,
    mps_check,
    stray_checks,
    zombie_check,
)

LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"


def of_kernel(process, **options):
    found = list(kernel_checks(overview(process=process, **options), process))
    for check in found:
        assert (check.fix is None) == (check.status == "ok"), check
    return found


def leftovers(*arguments, users=(), everybody=False, **options):
    facts = Facts(users=tuple(users), sees_everybody=everybody)
    return list(leftover_checks(overview(*arguments, **options), facts))


class TestState:
    """What CUDA does here, and since which cell."""

    @pytest.mark.parametrize(
        ("state", "words"),
        [
            ("open", "nothing has initialised it"),
            ("absent", "no working driver"),
            ("simulated", "no driver"),
        ],
    )
    def test_what_is_in_order_is_one_line(self, state, words):
        check = of_kernel(kernel(state=state))[0]
        assert (check.status, words in check.found) == ("ok", True)

    def test_b45_frozen_names_the_cell_and_the_call(self):
        history = History(frozen=Frozen(4, call="torch.cuda.is_available"))
        check = of_kernel(kernel(state="frozen", in_force=(3, 5), history=history))[0]
        assert check.status == "ok"
        assert check.found == "frozen by cell [4] (torch.cuda.is_available)"

    def test_b06_an_import_that_froze_it_is_a_warning(self):
        history = History(frozen=Frozen(2, chain=("kornia", "kornia.core")))
        check = of_kernel(kernel(state="frozen", in_force=(3, 5), history=history))[0]
        assert check.status == "warn"
        assert "import kornia, which imports kornia.core" in check.found

    def test_late_changes_are_named_by_their_cells(self):
        changes = tuple(Change(cell, "1", "2", "%env") for cell in (3, 6, 6, 8))
        history = History(frozen=Frozen(4), changes=changes)
        check = of_kernel(kernel(state="frozen", in_force=(3, 5), history=history))[0]
        assert check.found.endswith("after that, in cell [6], cell [8]")

    def test_a_freeze_that_nobody_saw_is_one(self):
        check = of_kernel(kernel(state="frozen", in_force=(3, 5)))[0]
        assert check.found == "frozen; since which cell is not known"


@pytest.mark.parametrize(
    ("frozen", "status", "words"),
    [
        pytest.param(True, "fail", "it can never use CUDA", id="B47"),
        (False, "ok", "had not initialised CUDA"),
        (None, "warn", "if that had initialised it"),
    ],
)
def test_a_fork_is_told_from_what_its_kernel_was(frozen, status, words):
    check = of_kernel(kernel(state="forked", history=History(forked_frozen=frozen)))[0]
    assert (check.name, check.status, words in check.found) == ("fork", status, True)
    assert check.fix is None or "spawn" in check.fix


class TestLease:
    """The lease of this kernel against what is visible in it."""

    MINE = "a" * 15

    def one(self, process, **options):
        return of_kernel(process, **options)[1]

    def test_what_is_leased_and_visible_is_in_order(self):
        process = kernel(launched="1,2", now="1,2", lease_id=self.MINE)
        check = self.one(process, leases=(lease("a", (1, 2)),), value="1,2")
        assert (check.status, check.found) == ("ok", "physical 1, 2, for this kernel alone")

    def test_a_share_is_not_said_to_be_for_this_kernel_alone(self):
        whole = lease("a", (0,))
        record = dataclasses.replace(whole.record, units=DEVICE_UNITS // 4)
        quarter = dataclasses.replace(whole, record=record)
        process = kernel(launched="0", now="0", lease_id="a" * 15)
        check = of_kernel(process, leases=[quarter], value="0")[-1]
        assert (check.status, check.found) == ("ok", "¼ of physical 0, whose rest others may have")

    def test_a_mig_device_is_named_as_one(self):
        part = dataclasses.replace(device(1, kind="mig", profile="1g.18gb"), uuid="MIG-1f2e3d4c-1")
        machine = inventory(device(1, mig_mode=True, problem="in MIG mode"), part)
        mine = lease("a", (1,))
        record = dataclasses.replace(mine.record, uuids=(part.uuid,))
        mine = dataclasses.replace(mine, record=record)
        process = kernel(launched=part.uuid, now=part.uuid, lease_id="a" * 15)
        check = of_kernel(process, machine=machine, leases=[mine], value=part.uuid)[-1]
        assert check.found == "MIG device 1g.18gb of physical 1, for this kernel alone"

    def test_a_value_outside_the_lease_is_a_warning_with_the_way_back(self):
        process = kernel(launched="1", now="0,1", lease_id=self.MINE)
        check = self.one(process, leases=(lease("a", (1,)),), value="0,1")
        assert check.status == "warn"
        assert "physical 0 is visible too" in check.found
        assert check.fix == "%env CUDA_VISIBLE_DEVICES=1"

    def test_what_is_in_force_counts_rather_than_the_value(self):
        process = kernel(state="frozen", in_force=(0,), lease_id=self.MINE)
        check = self.one(process, leases=(lease("a", (1,)),), value="1")
        assert (check.status, check.fix) == ("warn", "restart the kernel")

    def test_a_lease_that_is_gone_is_a_failure(self):
        check = self.one(kernel(lease_id=self.MINE))
        assert (check.status, check.fix) == ("fail", "restart the kernel")

    def test_a_doubtful_lease_says_why(self):
        process = kernel(lease_id=self.MINE)
        check = self.one(process, leases=(lease("a", (1,), note="both cannot be true"),), value="1")
        assert (check.status, "both cannot be true" in check.found) == ("warn", True)

    def test_without_a_lease_it_matters_whether_somebody_holds_what_is_visible(self):
        assert self.one(kernel(), value="1").status == "ok"
        check = self.one(kernel(), leases=(lease("b", (1,)),), value="1")
        assert check.status == "warn"
        assert "physical 1 is held by alice (expb.ipynb)" in check.found

    def test_without_a_lease_and_a_gpu_nothing_is_missing(self):
        assert self.one(kernel(), value="-1").found == "none, and no GPU is visible"

    def test_where_leases_do_not_work_none_is_missed(self):
        nowhere = Leasing(exclusive=False, problem="Not exclusive here.")
        assert self.one(kernel(lease_id=self.MINE), leasing=nowhere).status == "ok"


class TestMPS:
    """Limits mean nothing without a daemon."""

    def test_where_nothing_speaks_of_it_there_is_no_line(self):
        assert mps_check(Facts(), {LIMIT: "25"}) is None
        assert mps_check(Facts(mps=MPS("/p", daemon=False)), {}) is None
        assert mps_check(Facts(mps=MPS("/p", daemon=None)), {}) is None

    @pytest.mark.parametrize(
        ("environ", "words"),
        [({LIMIT: "25"}, "nothing is limited"), ({PIPES: "/p"}, "programs run without MPS")],
    )
    def test_settings_without_a_daemon_are_a_warning(self, environ, words):
        check = mps_check(Facts(mps=MPS("/p", daemon=False)), environ)
        assert (check.status, words in check.found) == ("warn", True)
        assert "unset" in check.fix

    @pytest.mark.parametrize(("daemon", "words"), [(True, "runs"), (None, "cannot be seen")])
    def test_a_daemon_is_said_with_its_limits(self, daemon, words):
        check = mps_check(Facts(mps=MPS("/p", daemon=daemon)), {LIMIT: "25"})
        assert (check.status, words in check.found) == ("ok", True)
        assert f'{LIMIT}="25"' in check.found


class TestLeftovers:
    """Memory that nobody explains, and workers whose kernel is dead."""

    WORKER = DeviceUser(812, "alice", "python -m ipykernel_launcher", (0,), orphan=True)
    MONITOR = DeviceUser(99, "root", "nvidia-persistenced", (0, 1))
    HELD = inventory(device(0, memory_used_bytes=int(8.5 * GIB)), device(1))

    def test_a_machine_at_rest_has_none(self):
        assert leftovers(users=(self.MONITOR,)) == []

    def test_b64_memory_without_a_process_names_who_has_the_device_open(self):
        (check,) = leftovers(self.HELD, users=(self.WORKER, self.MONITOR))
        assert check.status == "warn"
        assert check.found.startswith("8.5 GiB of GPU 0 are held, and the holder is not visible")
        assert "812 of alice" in check.found
        assert "99 of root" in check.found
        assert check.fix == "kill 812"

    def test_b64_it_never_suggests_to_empty_a_cache(self):
        for users in ((), (self.WORKER,), (self.MONITOR,)):
            for everybody in (True, False):
                (check,) = leftovers(self.HELD, users=users, everybody=everybody)
                assert "empty_cache" not in check.found + check.fix

    def test_who_may_not_look_is_told_who_may(self):
        (check,) = leftovers(self.HELD)
        assert check.fix.startswith("sudo jupyter gpu doctor")
        (check,) = leftovers(self.HELD, everybody=True)
        assert "nobody here has the device open" in check.found

    def test_b117_what_the_driver_keeps_is_nobodys(self):
        assert leftovers(inventory(device(0, memory_used_bytes=308 * 2**20))) == []

    @pytest.mark.parametrize(
        ("changes", "seen"),
        [
            ({"processes": using(5, GIB)}, ((5, "ben", "python train.py"),)),
            ({"display": True}, ()),
            ({"problem": "it is lost"}, ()),
            ({"mig_mode": True}, ()),
            ({"memory_used_bytes": None}, ()),
        ],
    )
    def test_memory_that_is_explained_is_not_mentioned(self, changes, seen):
        machine = inventory(device(0, **{"memory_used_bytes": 9 * GIB, **changes}))
        assert leftovers(machine, seen=seen) == []

    def test_a_pid_that_is_gone_explains_nothing(self):
        machine = inventory(device(0, memory_used_bytes=GIB, processes=using(5, GIB)))
        assert len(leftovers(machine)) == 1

    def test_under_a_lease_memory_is_the_holders(self):
        assert leftovers(self.HELD, leases=(lease("b", (0,)),)) == []

    @pytest.mark.parametrize(
        ("leases", "count"), [(("a",), 1), ((), 1), (("b",), 0), (("a", "b"), 0)]
    )
    def test_memory_is_a_leftover_while_i_have_used_none_and_nobody_else_leases_it(
        self, leases, count
    ):
        process = kernel(lease_id="a" * 15)
        held = tuple(lease(name, (0,)) for name in leases)
        assert len(leftovers(self.HELD, leases=held, process=process)) == count

    @pytest.mark.parametrize("leases", [("a",), ()])
    def test_b103_once_cuda_is_in_force_here_it_may_be_mine(self, leases):
        process = kernel(lease_id="a" * 15, state="frozen", in_force=(0,))
        held = tuple(lease(name, (0,)) for name in leases)
        assert leftovers(self.HELD, leases=held, process=process) == []

    def test_b74_a_worker_of_a_dead_kernel_is_listed_with_pid_and_command(self):
        (check,) = leftovers(users=(self.WORKER, self.MONITOR))
        assert (check.name, check.status, check.fix) == ("orphan 812", "warn", "kill 812")
        assert "python -m ipykernel_launcher" in check.found

    def test_a_worker_that_keeps_a_lease_is_said_there_and_not_again(self):
        kept = lease("b", (0,), state="draining", pids=(812,))
        assert leftovers(users=(self.WORKER,), leases=(kept,)) == []


class TestStrays:
    """Compute processes without a lease on the device that they use."""

    BOB = (4411, "bob", "python train.py")
    USED = inventory(device(0), device(1), device(2, processes=using(4411)), device(3))

    def strays(self, machine=None, *, above=None, users=(), seen=(BOB,), **options):
        found = overview(machine or self.USED, seen=seen, **options)
        return list(stray_checks(found, Facts(users=tuple(users)), above or {}))

    def test_a_machine_at_rest_has_none(self):
        assert self.strays(inventory()) == []

    def test_a_process_without_a_lease_is_named_with_its_owner(self):
        (check,) = self.strays()
        assert (check.name, check.status) == ("stray 4411", "warn")
        assert check.found == "GPU 2 is used without a lease by bob: 4411 python train.py"
        assert "jupyter gpu run" in check.fix

    def test_a_process_on_two_devices_is_a_warning_for_each(self):
        machine = inventory(device(0, processes=using(4411)), device(1, processes=using(4411)))
        found = [check.found.partition(" is ")[0] for check in self.strays(machine)]
        assert found == ["GPU 0", "GPU 1"]

    def test_the_holder_and_what_it_has_started_do_not_count(self):
        holder = lease("a", (2,), "bob", pids=(4411,))
        assert self.strays(leases=(holder,)) == []
        parent = lease("a", (2,), "bob", pids=(7,))
        assert len(self.strays(leases=(parent,))) == 1
        assert self.strays(leases=(parent,), above={4411: {5, 6, 7}}) == []

    def test_what_a_kernel_that_is_gone_has_started_descends_from_its_session(self):
        owner = Owner("kernel", processes=(ProcessRef(7, 1, 2),))
        gone = lease("a", (2,), "carol", owner, state="draining", pids=(8,))
        assert self.strays(leases=(gone,), above={4411: {7}}) == []
        assert len(self.strays(leases=(gone,), above={4411: {9}})) == 1

    def test_workers_of_the_same_user_that_are_not_named_belong_to_a_draining_lease(self):
        for user, count in (("bob", 0), ("carol", 1)):
            gone = lease("a", (2,), user, state="draining", pids=())
            assert len(self.strays(leases=(gone,))) == count

    def test_b103_a_lease_in_another_container_may_be_its_own(self):
        hidden = lease("a", (2,), "root", pids=(), note="its processes are in another container")
        assert self.strays(leases=(hidden,)) == []
        elsewhere = lease("a", (3,), "root", pids=())
        assert len(self.strays(leases=(elsewhere,))) == 1

    def test_fellow_sharers_do_not_count(self):
        shares = []
        for name, pid in (("a", 4411), ("b", 4412)):
            whole = lease(name, (2,), "bob", pids=(pid,))
            record = dataclasses.replace(whole.record, units=DEVICE_UNITS // 4)
            shares.append(dataclasses.replace(whole, record=record))
        machine = inventory(device(0), device(1), device(2, processes=(*using(4411), *using(4412))))
        seen = (self.BOB, (4412, "carol", "python x.py"))
        assert self.strays(machine, leases=shares, seen=seen) == []

    def test_a_lease_on_another_device_is_said_with_what_went_wrong(self):
        (check,) = self.strays(leases=(lease("a", (0, 1), "bob", pids=(4411,)),))
        assert check.found.startswith("GPU 2 is used without a lease by bob: 4411")
        assert "its lease is on GPU 0, 1" in check.fix

    def test_neither_the_mps_server_nor_the_kernel_that_asks_counts(self):
        server = ((4411, "root", "nvidia-cuda-mps-server"),)
        assert self.strays(seen=server) == []
        assert self.strays(process=kernel(pid=4411)) == []
        assert self.strays(process=kernel(pid=7), above={4411: {7}}) == []

    def test_what_cannot_be_seen_here_is_nobodys_stray(self):
        assert self.strays(seen=()) == []

    def test_an_orphan_is_told_of_once(self):
        worker = DeviceUser(4411, "bob", "python", (2,), orphan=True)
        assert self.strays(users=(worker,)) == []
        other = DeviceUser(4411, "bob", "python", (2,))
        assert len(self.strays(users=(other,))) == 1

    def test_where_nothing_is_leased_there_are_none(self):
        assert self.strays(leasing=Leasing(exclusive=False)) == []

    def test_a_lease_on_a_part_covers_its_gpu_and_the_other_way_round(self):
        whole = device(0, mig_mode=True, processes=using(4411))
        part = dataclasses.replace(
            device(1, kind="mig", processes=using(4411)), index=0, parent=whole.uuid
        )
        machine = inventory(whole, part)
        for holder in (
            lease("a", (0,), "bob", pids=(4411,)),
            lease("a", (1,), "bob", pids=(4411,)),
        ):
            assert self.strays(machine, leases=(holder,)) == []
        assert len(self.strays(machine)) == 2
        assert self.strays(machine)[1].found.startswith(f"MIG device {part.uuid} of GPU 0 is used")


@pytest.mark.parametrize("parent", [None, SeenProcess(3, "root", "tini")])
def test_a_zombie_is_labelled_with_who_has_to_reap_it(parent):
    machine = inventory(device(0, processes=using(5)), device(1), device(2, processes=using(5)))
    check = zombie_check(overview(machine), SeenProcess(5, "bob", "[python]"), parent)
    who = "its parent" if parent is None else "its parent 3 (tini)"
    assert (check.name, check.status) == ("zombie 5", "warn")
    assert check.found == (
        "5 of bob, which the driver lists on GPU 0, 2, is a zombie: it has ended, and "
        f"{who} has not reaped it"
    )
    assert who in check.fix
