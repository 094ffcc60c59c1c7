"""Sharing from end to end: shares, MIG devices, neighbours, rules, holds and the queue."""

import contextlib
import json
import os
import random
import signal
import sys
from fractions import Fraction

import pytest
from kernels import leases, queue
from support_cli import finish, gpu, gpu_json, start

import jupyter_gpu
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import user_name
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import GPUError, ImpossibleRequest, NoDeviceAvailable
from jupyter_gpu.core.grants import Ended, Granted
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.rules import RulesError

GIB = 2**30
ME = user_name(os.getuid())
H200 = {"name": "NVIDIA H200", "memory_total_bytes": 150_754_820_096}
SMALL = {"profile": "1g.18gb", "memory_total_bytes": 18 * GIB}
LARGE = {"profile": "3g.71gb", "memory_total_bytes": 71 * GIB}
WITH_MIG = {"gpus": [{**H200, "mig": [SMALL, SMALL, LARGE]}, H200]}
PAIRS = {
    "gpus": [
        {**H200, "links": {"2": "nvlink"}, "numa_node": 0},
        {**H200, "links": {"3": "nvlink"}, "numa_node": 1},
        {**H200, "numa_node": 0},
        {**H200, "numa_node": 1},
    ]
}
ASK = """
import sys, jupyter_gpu
for line in sys.stdin:
    words = line.split()
    lease = None
    try:
        lease = jupyter_gpu.acquire(words[0], wait=words[1] if words[1:] else 0)
        print("got", *[device.index for device in lease.devices])
    except jupyter_gpu.GPUError as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


@pytest.fixture(autouse=True)
def _no_rules_of_the_computers_own(monkeypatch, tmp_path):
    """Keep what ``/etc/jupyter-gpu.toml`` may say on this computer out of these tests."""
    path = tmp_path / "no-rules.toml"
    path.touch()
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """A function that writes the file of rules."""
    path = tmp_path / "rules.toml"
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))

    def write(text):
        path.write_text(text)
        return path

    write("")
    return write


def indices(lease):
    return [device.index for device in lease.devices]


def python(code):
    return ("--", sys.executable, "-c", code)


def refused(gpus=1, error=NoDeviceAvailable, **options):
    with pytest.raises(error) as caught:
        jupyter_gpu.acquire(gpus, **options)
    return str(caught.value)


@pytest.fixture
def under(monkeypatch):
    """Put a lease's variables into this environment: what asks then is nested in it."""
    return lambda lease: [monkeypatch.setenv(k, v) for k, v in lease.environment.items()]


class TestShares:
    """Parts of a GPU."""

    def test_different_fractions_fill_a_gpu_and_no_more(self, simulate):
        simulate("1xH200")
        with contextlib.ExitStack() as stack:
            shares = ["1/3", "1/4", "1/5", "1/7", "1/14"]
            held = [stack.enter_context(jupyter_gpu.acquire(share)) for share in shares]
            assert [lease.record.share for lease in held] == [Fraction(share) for share in shares]
            left = 1 - sum(map(Fraction, shares))
            assert left == Fraction(1, 420)
            assert refused("1/100").splitlines()[0] == "No 1/100 GPU is free (1 on this machine)."
            stack.enter_context(jupyter_gpu.acquire("1/420", memory_cap="none"))
            refused("1/27720", memory_cap="none")
            assert sum(lease.record.units for lease in leases()) == DEVICE_UNITS
        assert leases() == ()

    def test_a_whole_gpu_and_a_share_exclude_each_other(self, simulate):
        simulate("1xH200")
        with jupyter_gpu.acquire("1/4"):
            assert "¼ GPU" in refused(1)
            refused("all")
        with jupyter_gpu.acquire(1):
            refused("1/4")
        with jupyter_gpu.acquire("1/1") as whole:
            assert (whole.record.share, whole.record.request.share) == (1, None)

    def test_a_share_stands_in_the_pieces_that_others_have_left(self, simulate):
        simulate("1xH200")
        quarters = [jupyter_gpu.acquire("1/4") for _ in range(4)]
        quarters[0].release()
        quarters[2].release()
        with jupyter_gpu.acquire("1/2") as half:
            assert half.record.share == Fraction(1, 2)
            refused("1/100")
        quarters[1].release()
        quarters[3].release()
        with jupyter_gpu.acquire(1):
            pass

    def test_shares_gather_on_the_fullest_gpu_on_which_they_fit(self, simulate):
        simulate("3xH200")
        with contextlib.ExitStack() as stack:
            def take(gpus, **options):
                return indices(stack.enter_context(jupyter_gpu.acquire(gpus, **options)))

            assert take("1/2", devices=[1]) == [1]
            assert take("3/4", devices=[2]) == [2]
            assert take("1/4") == [2]
            assert take("1/4") == [1]
            assert take("1/2") == [0]
            assert take("1/4") == [1]
            assert take("1/4") == [0]
            assert leases()[-1].record.because
            assert gpu_leases_left(3) == 0

    def test_a_refusal_says_who_has_which_part_and_what_is_left(self, simulate):
        simulate("1xH200")
        with jupyter_gpu.acquire("1/2"), jupyter_gpu.acquire("1/4"):
            said = refused("1/2")
        assert said.startswith("No ½ GPU is free (1 on this machine).\n")
        told = " ".join(said.split())
        assert (told.count("½ GPU since"), told.count("¼ GPU since")) == (1, 1)
        assert "  0  ¼ GPU left, ½ GPU is needed\n" in said

    def test_the_lease_and_who_say_the_part(self, simulate, capsys):
        simulate("1xH200")
        with jupyter_gpu.acquire("1/4", memory_cap="none"):
            (row,) = gpu_json(capsys, "who")["leases"]
            assert (row["share"], row["request"]["gpus"]) == (0.25, "1/4")
            assert row["request"]["memory_cap"] == "none"
            assert "¼ GPU" in gpu(capsys, "who")[1]
            assert "¾ GPU free" in gpu(capsys, "status")[1]

    def test_a_race_never_gives_out_more_than_there_is(self, simulate, program):
        simulate("2xH200")
        programs = [program(ASK) for _ in range(8)]
        chance = random.Random(4)
        for _ in range(5):
            asked = [chance.choice(["1/2", "1/3", "1/4", "1/8", "1", "2"]) for _ in programs]
            for one, share in zip(programs, asked, strict=True):
                one.send(share)
            got = [one.read().startswith("got") for one in programs]
            assert any(got)
            units = {}
            for lease in leases():
                assert lease.note is None
                for index in lease.record.indices:
                    units[index] = units.get(index, 0) + lease.record.units
            assert max(units.values()) <= DEVICE_UNITS
        for one in programs:
            one.kill()
        with jupyter_gpu.acquire(2):
            pass


def gpu_leases_left(count):
    """How many whole devices can still be had."""
    for number in range(count, 0, -1):
        with contextlib.suppress(NoDeviceAvailable), jupyter_gpu.acquire(number):
            return number
    return 0


class TestStrangers:
    """Processes on a shared GPU."""

    def machine(self, *pids, used=None):
        processes = [{"pid": pid, "memory_bytes": GIB} for pid in pids]
        return {"gpus": [{**H200, "processes": processes, "memory_used_bytes": used}]}

    def test_the_processes_of_fellow_sharers_are_no_strangers(self, simulate, program):
        simulate(self.machine())
        one = program(ASK)
        assert one.tell("1/4") == "got 0"
        simulate(self.machine(one.pid, used=GIB))
        with jupyter_gpu.acquire("1/4"):
            pass
        refused(1)

    def test_a_strangers_process_keeps_shares_away_too(self, simulate, program):
        stranger = program("input()")
        simulate(self.machine(stranger.pid))
        sharer = program(ASK)
        assert "used without a lease by" in refused("1/4")
        simulate(self.machine())
        assert sharer.tell("1/4") == "got 0"
        simulate(self.machine(sharer.pid, stranger.pid))
        assert f"used without a lease by {ME}: {stranger.pid}" in refused("1/4")

    def test_what_a_sharer_has_started_belongs_to_it(self, simulate, program):
        code = ASK.replace(
            "import sys", "import subprocess, sys\nchild = subprocess.Popen(['sleep', '60'])\n"
            "print(child.pid)\nimport sys"
        )
        simulate(self.machine())
        sharer = program(code)
        child = int(sharer.read())
        assert sharer.tell("1/4") == "got 0"
        simulate(self.machine(child))
        with jupyter_gpu.acquire("1/4"):
            pass

    def test_nested_in_a_share_fellow_sharers_are_no_strangers_either(
        self, simulate, program, under
    ):
        simulate(self.machine())
        fellow = program(ASK)
        assert fellow.tell("1/4") == "got 0"
        with jupyter_gpu.acquire("1/2") as above:
            simulate(self.machine(fellow.pid))
            under(above)
            with jupyter_gpu.acquire("1/4") as nested:
                assert nested.record.ancestors == (above.id,)

    def test_memory_of_unseen_sharers_is_no_obstacle_to_shares(self, simulate):
        simulate(self.machine())
        with jupyter_gpu.acquire("1/4"):
            simulate(self.machine(used=30 * GIB))
            with jupyter_gpu.acquire("1/4"):
                pass
        assert "in use by no process that can be seen" in refused("1/4")


class TestCaps:
    """What a share's program is told to keep to."""

    @pytest.fixture(autouse=True)
    def _machine(self, simulate):
        simulate("2xH200")

    def test_caps_below_what_a_context_needs_are_refused_before_anything_is_leased(self):
        said = refused("1/1000", ImpossibleRequest)
        assert "1/1000 of GPU 0 is 151 MB, less than the 600 MB" in said
        assert "memory_cap of 100 MB is less than" in refused(
            "1/4", ImpossibleRequest, memory_cap="100MB"
        )
        assert leases() == ()

    def test_a_cap_above_the_shares_part_is_refused(self):
        said = refused("1/4", ImpossibleRequest, memory_cap="100GiB")
        assert "a memory_cap of 100.0 GiB is more than the 35.1 GiB" in said

    @pytest.mark.parametrize("given", ["0", "-1GiB", "much", "", 1.5, True])
    def test_a_cap_of_unknown_form_is_refused(self, given):
        with pytest.raises(jupyter_gpu.RequestError, match="memory_cap"):
            jupyter_gpu.acquire("1/4", memory_cap=given)

    @pytest.mark.parametrize(
        ("gpus", "cap", "fraction"),
        [
            ("1/4", "auto", "0.25"),
            ("1/4", "14040MiB", "0.097655"),
            ("1/4", "none", None),
            (1, "auto", None),
            (1, "71885MiB", "0.499996"),
            (2, "14040MiB", "0.097655"),
        ],
    )
    def test_jax_is_told_its_part(self, gpus, cap, fraction):
        with jupyter_gpu.acquire(gpus, memory_cap=cap) as lease:
            assert lease.environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == fraction
            assert bool(lease.record.caps) == (gpus == "1/4" or cap != "auto")
            assert ("JUPYTER_GPU_CAPS" in lease.environment) == (fraction is not None)

    def test_a_persons_lower_cap_stays_and_a_higher_one_gives_way_and_is_remembered(
        self, monkeypatch
    ):
        name = "XLA_CLIENT_MEM_FRACTION"
        monkeypatch.setenv(name, "0.1")
        with jupyter_gpu.acquire("1/4") as lease:
            assert not {name, "XLA_PYTHON_CLIENT_MEM_FRACTION"} & set(lease.environment)
        monkeypatch.setenv(name, "0.9")
        with jupyter_gpu.acquire("1/4") as lease:
            assert lease.environment[name] == "0.25"
            assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in lease.environment
            assert json.loads(lease.environment["JUPYTER_GPU_CAPS"]) == {name: ["0.25", "0.9"]}

    def test_who_tells_how_hard_the_caps_are(self, capsys):
        with jupyter_gpu.acquire("1/4"):
            (row,) = gpu_json(capsys, "who")["leases"]
            assert "JAX takes at most 35.1 GiB in each process." in " ".join(row["caps"])

    def test_a_run_command_finds_the_caps_in_its_environment(self):
        code = "import os; print(os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'])"
        assert finish("run", "--gpus", "1/4", *python(code)) == (0, "0.25\n", "")
        assert finish("run", "--gpus=1/4", "--memory-cap=14040MiB", *python(code))[1] == "0.097655\n"


class TestNested:
    """Leases below a lease on a share."""

    @pytest.fixture(autouse=True)
    def _machine(self, simulate):
        simulate("2xH200")

    def test_a_command_on_a_half_parts_it_in_two_quarters_and_no_more(self):
        code = """
import jupyter_gpu
kept = [jupyter_gpu.acquire("1/4") for _ in range(2)]
print([lease.record.indices for lease in kept])
for gpus in ("1/4", "3/4", 1):
    try:
        jupyter_gpu.acquire(gpus)
    except jupyter_gpu.GPUError as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""
        code, out, err = finish("run", "--gpus", "1/2", *python(code))
        assert (code, err) == (0, "")
        few = "ImpossibleRequest {}: the lease that this program runs under has only a share of physical 0."
        assert out.splitlines() == [
            "[(0,), (0,)]",
            "NoDeviceAvailable No ¼ GPU is free (1 in this pool).",
            few.format("¾ GPU"),
            few.format("1 GPU"),
        ]

    def test_the_caps_of_the_lease_above_are_no_wish_of_the_persons(self, under):
        with jupyter_gpu.acquire("1/2") as above:
            under(above)
            assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
            with jupyter_gpu.acquire("1/4") as nested:
                caps = json.loads(nested.environment["JUPYTER_GPU_CAPS"])
                assert caps == {"XLA_PYTHON_CLIENT_MEM_FRACTION": ["0.25", None]}

    def test_refusals_name_only_those_who_part_the_same_share(self, under, program):
        stranger = program(ASK)
        with jupyter_gpu.acquire("1/2") as above:
            assert stranger.tell("1/2") == "got 0"
            under(above)
            with jupyter_gpu.acquire("1/2"):
                said = refused("1/4")
        assert said.count("½ GPU") == 1

    def test_other_sharers_neither_see_nor_feel_nested_leases(self, under, program):
        others = [program(ASK) for _ in range(2)]
        with jupyter_gpu.acquire("1/2", devices=[0]) as above:
            under(above)
            with jupyter_gpu.acquire("1/2"):
                assert others[0].process.poll() is None
                for other in others:
                    environ_free = other.tell("1/4")
                    assert environ_free == "got 0"
        assert {lease.record.indices for lease in leases()} == {(0,)}

    def test_what_outlives_its_share_keeps_its_gpu_from_others_until_it_ends(
        self, program, eventually
    ):
        inner = (
            "import jupyter_gpu, sys; kept = jupyter_gpu.acquire('1/4'); print('nested', flush=True)\n"
            "sys.stdin.read()"
        )
        outer = program(
            "import os, subprocess, sys, jupyter_gpu\n"
            "lease = jupyter_gpu.acquire('1/2', devices=[0])\n"
            f"child = subprocess.Popen([sys.executable, '-c', {inner!r}], "
            "env={**os.environ, **lease.environment}, stdout=subprocess.PIPE, "
            "stdin=subprocess.PIPE)\n"
            "assert child.stdout.readline() == b'nested\\n'\n"
            "print(child.pid); input(); lease.release(); print('released'); input()\n"
            "child.stdin.close(); child.wait(); print('ended'); input()\n"
        )
        outer.read()
        assert outer.tell("") == "released"
        with jupyter_gpu.acquire("1/4") as share:
            assert indices(share) == [1]
        assert "0" in refused(2)
        with jupyter_gpu.acquire(1) as whole:
            assert indices(whole) == [1]
        assert outer.tell("") == "ended"
        with jupyter_gpu.acquire(2):
            pass
    def test_a_nested_lease_that_outlives_its_share_disturbs_no_other_gpu(self, program, under):
        """Its mark stands on its own GPU: shares elsewhere, nested ones too, go on."""
        inner = "import jupyter_gpu, sys; k = jupyter_gpu.acquire('1/4'); print(1); sys.stdin.read()"
        with jupyter_gpu.acquire("1/2", devices=[0]) as gone:
            child = program(inner, environ=gone.environment)
            child.read()
        with jupyter_gpu.acquire("1/2", devices=[1]) as other:
            other_child = program(inner, environ=other.environment)
            other_child.read()
            with jupyter_gpu.acquire("1/4", devices=[1]) as beside:
                assert indices(beside) == [1]
        child.end()


class TestMIG:
    """MIG devices."""

    @pytest.fixture
    def machine(self, simulate):
        return simulate(WITH_MIG)

    def test_a_profile_gets_a_device_of_it_by_its_uuid(self, machine):
        parts = [device for device in machine.devices if device.profile == "1g.18gb"]
        with jupyter_gpu.acquire("mig:1g.18gb") as one, jupyter_gpu.acquire("mig:1G.18GB") as two:
            assert {one.devices[0].uuid, two.devices[0].uuid} == {part.uuid for part in parts}
            assert one.environment["CUDA_VISIBLE_DEVICES"] == one.devices[0].uuid
            assert (one.devices[0].parent, one.record.indices) == (machine.devices[0].uuid, (0,))
            assert "1g.18gb" in refused("mig:1g.18gb")
            with jupyter_gpu.acquire("mig:3g.71gb") as large:
                assert large.devices[0].profile == "3g.71gb"

    def test_a_profile_that_is_not_there_lists_those_that_are(self, machine, simulate):
        said = refused("mig:2g.35gb", ImpossibleRequest)
        assert "Its MIG profiles: 1g.18gb, 3g.71gb." in said
        assert finish("run", "--gpus", "mig:2g.35gb", "--", "true")[0] == 2
        simulate("2xH200")
        assert "no GPU here is in MIG mode" in refused("mig:1g.18gb", ImpossibleRequest)

    def test_a_device_is_had_by_its_uuid_and_by_its_older_name(self, machine):
        parent, _, second, _, _ = machine.devices
        older = f"MIG-{parent.uuid}/{second.gpu_instance}/{second.compute_instance}"
        for name in (second.uuid, older, second.uuid[:14]):
            with jupyter_gpu.acquire(1, devices=[name]) as lease:
                assert [device.uuid for device in lease.devices] == [second.uuid]
                assert lease.environment["CUDA_VISIBLE_DEVICES"] == second.uuid
                assert "leased" not in refused(1, devices=[older])

    def test_a_whole_gpu_is_never_one_in_mig_mode(self, machine):
        with jupyter_gpu.acquire(1) as lease:
            assert indices(lease) == [1]
            refused(1)
        with jupyter_gpu.acquire("all") as lease:
            assert [device.kind for device in lease.devices] == ["gpu"]
        assert "in MIG mode" in refused(2, ImpossibleRequest)
        refused(1, ImpossibleRequest, devices=[0])

    def test_a_share_of_a_gpu_in_mig_mode_is_had_of_another(self, machine):
        with jupyter_gpu.acquire("1/4") as lease:
            assert indices(lease) == [1]

    def test_a_kernel_gets_one_mig_device_unless_the_rules_know_better(self, machine, rules):
        names = [device.uuid for device in machine.devices if device.kind == "mig"][:2]
        said = refused(2, ImpossibleRequest, devices=names)
        assert "a kernel gets 1 MIG device at most" in said
        assert "mig_devices_per_kernel" in said
        rules("mig_devices_per_kernel = 2\n")
        with jupyter_gpu.acquire(2, devices=names) as lease:
            assert lease.environment["CUDA_VISIBLE_DEVICES"] == ",".join(names)

    def test_a_share_of_a_mig_device_that_is_named(self, machine):
        name = next(device.uuid for device in machine.devices if device.profile == "3g.71gb")
        with jupyter_gpu.acquire("1/2", devices=[name]), jupyter_gpu.acquire("1/2", devices=[name]):
            refused(1, devices=[name])

    def test_run_and_status_show_parent_and_profile(self, machine, capsys):
        code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
        ended, out, _ = finish("run", "--gpus", "mig:3g.71gb", *python(code))
        assert ended == 0
        rows = gpu_json(capsys, "status")["devices"]
        (row,) = [row for row in rows if row["uuid"] == out.strip()]
        assert (row["kind"], row["parent"], row["profile"], row["index"]) == (
            "mig", machine.devices[0].uuid, "3g.71gb", 0,
        )  # fmt: skip


class TestTopology:
    """Neighbours."""

    @pytest.mark.parametrize("topology", ["prefer", "require"])
    def test_a_pair_is_joined_by_nvlink_and_says_so(self, simulate, topology):
        simulate(PAIRS)
        with jupyter_gpu.acquire(2) as plain:
            assert indices(plain) == [0, 1]
        with jupyter_gpu.acquire(2, topology=topology) as lease:
            assert indices(lease) == [0, 2]
            assert "NVLink" in " ".join(lease.record.because)

    def test_one_end_of_a_pair_taken_leaves_the_other_pair(self, simulate):
        simulate(PAIRS)
        with jupyter_gpu.acquire(1), jupyter_gpu.acquire(2, topology="require") as lease:
            assert indices(lease) == [1, 3]

    def test_what_is_only_preferred_is_had_otherwise_and_what_is_required_waits(self, simulate):
        simulate(PAIRS)
        with jupyter_gpu.acquire(2, devices=[0, 1]):
            with jupyter_gpu.acquire(2, topology="prefer") as lease:
                assert indices(lease) == [2, 3]
            said = refused(2, topology="require")
            assert said.startswith("No 2 GPUs joined by NVLink are free (4 on this machine).\n")
            assert "  2, 3  free, but no 2 of them are joined by NVLink\n" in said

    def test_what_can_never_be_met_says_the_best_that_there_is(self, simulate):
        simulate(PAIRS)
        said = refused(3, ImpossibleRequest, topology="require")
        assert "cannot be met here" in said
        simulate("4xL4")
        said = refused(2, ImpossibleRequest, topology="require")
        assert said.startswith("2 GPUs joined by NVLink are asked for, and that cannot be met here:")
        assert finish("run", "--gpus=2", "--topology=require", "--", "true")[0] == 2

    def test_cpus_that_are_only_simulated_bind_nothing_and_that_is_said(self, simulate):
        machine = {"gpus": [{**H200, "numa_node": 1}, {**H200, "numa_node": 0}]}
        simulate(machine)
        with jupyter_gpu.acquire(1, cpu_affinity="closest") as lease:
            near = lease.cpus
            assert lease.record.because
            assert near is None or set(near) < os.sched_getaffinity(0)
        code = "import os; print(sorted(os.sched_getaffinity(0)))"
        ended, out, err = finish("run", "--cpu-affinity", "closest", *python(code))
        assert (ended, err) == (0, "")
        assert json.loads(out) == sorted(near or os.sched_getaffinity(0))


class TestRules:
    """What the administrator's file says, through every way to ask."""

    @pytest.fixture(autouse=True)
    def _machine(self, simulate):
        simulate("4xH200")

    def test_a_limit_refuses_what_would_pass_it_and_names_itself(self, rules):
        rules("max_devices_per_user = 2\n")
        with jupyter_gpu.acquire(1):
            with jupyter_gpu.acquire("1/2"):
                said = refused(1)
                assert said.splitlines()[0].startswith("You hold 1½ devices, this asks for 1 more")
                told = " ".join(said.split())
                assert "and the limit is 2: max_devices_per_user = 2 in /" in told
                assert "  2, 3  free\n" in said
                with jupyter_gpu.acquire("1/2"):
                    assert refused("1/4").startswith("You hold 2 devices, and the limit is 2")
            with jupyter_gpu.acquire(1):
                pass

    def test_what_a_limit_never_allows_is_wrong_usage(self, rules):
        path = rules("max_devices_per_user = 2\n")
        said = refused(3, ImpossibleRequest)
        assert said.startswith("3 GPUs: This asks for 3 devices, and the limit is 2")
        assert str(path) in said
        ended, out, err = finish("run", "--gpus", "3", "--", "true")
        assert (ended, out) == (2, "")
        assert "the limit is 2" in err
        refused("all", ImpossibleRequest)
        with jupyter_gpu.acquire(2):
            assert finish("run", "--", "true")[0] == 75

    def test_a_users_and_a_groups_own_limits_count(self, rules):
        rules(f"max_devices_per_user = 1\n[users.{ME}]\nmax_devices_per_user = 3\n")
        with jupyter_gpu.acquire(3):
            refused(1)
        import grp

        group = grp.getgrgid(os.getgid()).gr_name
        rules(f"max_devices_per_user = 1\n[groups.{group}]\nmax_devices_per_user = '1/2'\n")
        with jupyter_gpu.acquire("1/2"):
            told = " ".join(refused("1/4").split())
            assert f"max_devices_per_user = 1/2 for group {group} in /" in told
        refused(1, ImpossibleRequest)

    def test_nested_leases_are_counted_once(self, rules, under):
        rules("max_devices_per_user = 1\n")
        with jupyter_gpu.acquire(1) as above:
            under(above)
            with jupyter_gpu.acquire("1/2"), jupyter_gpu.acquire("1/2"):
                assert "No ¼ GPU is free" in refused("1/4")

    def test_starts_of_one_user_at_once_never_pass_the_limit(self, rules, program, simulate):
        simulate("16xH200")
        rules("max_devices_per_user = 3\n")
        programs = [program(ASK) for _ in range(20)]
        for one in programs:
            one.send("1")
        answers = [one.read() for one in programs]
        assert sum(answer.startswith("got") for answer in answers) == 3, answers
        assert len(leases()) == 3
        refusals = [answer for answer in answers if not answer.startswith("got")]
        assert {" ".join(words.split()[:5]) for words in refusals} == {
            "NoDeviceAvailable You hold 3 devices,"
        }

    def test_reserved_devices_are_for_those_named(self, rules):
        rules('[[reserved]]\ndevices = [0, 1]\nusers = ["carol"]\n')
        with jupyter_gpu.acquire(1) as lease:
            assert indices(lease) == [2]
            said = refused(2)
            assert "reserved for carol" in said or "are needed" in said
        said = refused(3, ImpossibleRequest)
        assert f"too few are open to {ME}: physical 0, 1 reserved for carol" in said
        with jupyter_gpu.acquire("all") as lease:
            assert indices(lease) == [2, 3]
        assert "reserved for carol" in refused(1, ImpossibleRequest, devices=[0])
        rules(f'[[reserved]]\ndevices = [0, 1]\nusers = ["{ME}"]\n')
        with jupyter_gpu.acquire(4):
            pass

    @pytest.mark.parametrize("text", ["max_devices = 1\n", "max_devices_per_user = -1\n", "[["])
    def test_a_broken_file_grants_nothing_and_says_why(self, rules, text):
        path = rules(text)
        said = refused(1, RulesError)
        assert said.startswith("No GPU is granted: the file of rules cannot be used.\n")
        assert str(path) in said
        assert leases() == ()
        ended, out, err = finish("run", "--", "echo", "ran")
        assert (ended, out) == (1, "")
        assert "the file of rules cannot be used" in err
        with jupyter_gpu.acquire(0) as nothing:
            assert nothing.environment["CUDA_VISIBLE_DEVICES"] == "-1"

    def test_a_file_that_breaks_while_one_waits_grants_nothing_and_keeps_the_place(
        self, rules, program, eventually
    ):
        with jupyter_gpu.acquire(4) as all_of_them:
            waiter = program(ASK)
            waiter.send("1 60")
            eventually(queue)
            rules("max_devices = 1\n")
            all_of_them.release()
            with pytest.raises(GPUError, match="No GPU is granted"):
                jupyter_gpu.acquire(1)
            assert len(queue()) == 1
            rules("")
            assert not waiter.read().startswith("RulesError")
        assert queue() == ()

    def test_a_hold_keeps_a_device_from_new_leases_and_leaves_the_old(self, place, capsys):
        with jupyter_gpu.acquire(1):
            for index in (0, 3):
                assert gpu(capsys, "hold", index, "--reason", "fan")[0] == 0
            assert len(leases()) == 1
            with jupyter_gpu.acquire(2) as lease:
                assert indices(lease) == [1, 2]
                assert "on hold" in refused(1)
                assert "fan" in refused("1/4")
        with pytest.raises(GPUError, match="on hold"):
            jupyter_gpu.acquire(1, devices=[0])


class TestNames:
    """Who may read whose notebooks."""

    @pytest.fixture(autouse=True)
    def _machine(self, simulate):
        simulate("2xH200")

    @pytest.mark.parametrize("policy", ["all", "own", "none"])
    def test_a_notebooks_name_is_in_the_records_only_as_the_rules_say(
        self, rules, lease_directory, place, capsys, policy
    ):
        from jupyter_gpu.allocator import Acquisition, acquire_now
        from jupyter_gpu.core.leases import Owner
        from jupyter_gpu.core.request import Request

        rules(f'show_notebooks = "{policy}"\n')
        owner = Owner("kernel", notebook="/home/alice/secret.ipynb")
        with acquire_now(Acquisition(Request(), owner, os.environ)) as lease:
            readable = [
                path.read_text() for path in records_path(place).iterdir()
                if path.stat().st_mode & 0o044
            ]  # fmt: skip
            assert any("secret" in text for text in readable) == (policy == "all")
            assert ("secret" in gpu(capsys, "who")[1]) == (policy != "none")
            recent = records_path(place) / f"recent-{os.getuid()}.json"
            assert recent.stat().st_mode & 0o777 == 0o600
            assert lease.record.id in {one.record.id for one in leases()}
        assert [path.name for path in records_path(place).iterdir()] == [recent.name]

    def test_another_user_reads_no_name_that_is_its_owners(
        self, rules, lease_directory, place, program, needs_root
    ):
        from jupyter_gpu.adapters.place import furnish
        from jupyter_gpu.allocator import Acquisition, acquire_now
        from jupyter_gpu.core.leases import Owner
        from jupyter_gpu.core.request import Request

        lease_directory.mkdir()
        furnish(lease_directory)
        path = rules('show_notebooks = "own"\n')
        path.chmod(0o644)
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            folder.chmod(0o755)
        owner = Owner("kernel", notebook="/home/alice/secret.ipynb")
        code = """
import os
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
with LeaseStore(find_place(os.environ, simulated=True)) as store:
    print([lease.record.owner.notebook for lease in store.holdings().leases])
"""
        with acquire_now(Acquisition(Request(), owner, os.environ)):
            assert program(code).read() == "['/home/alice/secret.ipynb']"
            assert program(code, uid=65534).read() == "[None]"


class TestWaiting:
    """The queue."""

    @pytest.fixture(autouse=True)
    def _machine(self, simulate):
        simulate("2xH200")

    def test_who_shows_positions_and_what_each_waits_for(self, program, eventually, capsys):
        with jupyter_gpu.acquire(2):
            for number, line in enumerate(("2 60", "1/4 60", "1 60"), 1):
                program(ASK).send(line)
                eventually(lambda number=number: len(queue()) == number)
            rows = gpu_json(capsys, "who")["queue"]
            assert [(row["position"], row["request"]["gpus"]) for row in rows] == [
                (1, 2), (2, "1/4"), (3, 1),
            ]  # fmt: skip
            said = gpu(capsys, "who")[1]
            shown = [line.rsplit("  ", 1)[-1] for line in said.splitlines()[-3:]]
            assert shown == ["2 GPUs", "¼ GPU", "1 GPU"]

    def test_small_requests_never_push_a_large_one_back(self, program, eventually):
        with jupyter_gpu.acquire("1/4") as lease:
            large = program(ASK)
            large.send("2 60")
            eventually(queue)
            said = refused("1/4")
            assert f"kept for {ME}, who waits for 2 GPUs" in said
            lease.release()
            assert large.read() == "got 0 1"

    def test_shares_pass_a_waiting_share_that_they_leave_room_for(self, program, eventually):
        with jupyter_gpu.acquire(1), jupyter_gpu.acquire("1/2"):
            waiter = program(ASK)
            waiter.send("3/4 60")
            eventually(queue)
            refused("1/4")
        assert waiter.read().startswith("got")

    def test_one_held_back_by_their_own_limit_holds_nobody_back(
        self, rules, program, eventually, capsys
    ):
        rules("max_devices_per_user = 1\n")
        with jupyter_gpu.acquire("1/2") as held:
            waiter = program(ASK)
            waiter.send("1 60")
            eventually(queue)
            with jupyter_gpu.acquire("1/2"):
                (row,) = gpu_json(capsys, "who")["queue"]
                assert row["position"] == 1
            held.release()
            assert waiter.read().startswith("got")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
    def test_a_wait_that_is_ended_leaves_nothing_that_counts(
        self, place, number, eventually
    ):
        with jupyter_gpu.acquire(2):
            with start("run", "--gpus", "1", "--wait", "60", "--", "true") as waiting:
                eventually(queue)
                waiting.send_signal(number)
                waiting.communicate(timeout=30)
            assert queue() == ()
            with LeaseStore(place) as store:
                assert not store.anyone_waits()
            if number == signal.SIGINT:
                assert not list(records_path(place).glob("*waiting-*"))


class TestLog:
    """The log of grants."""

    @pytest.fixture(autouse=True)
    def _machine(self, simulate):
        simulate("2xH200")

    def entries(self, place):
        users = GrantLog(place).read().users
        return [entry for user in users for entry in user.entries]

    def test_each_lease_is_granted_once_and_ends_once(self, place, under):
        with jupyter_gpu.acquire("1/4") as share:
            under(share)
            with jupyter_gpu.acquire("1/4"):
                pass
        one, other = self.entries(place)
        assert isinstance(one, Granted)
        assert (one.lease, one.share, one.indices) == (share.id, Fraction(1, 4), (0,))
        assert isinstance(other, Ended)
        assert (other.lease, other.exact) == (share.id, True)

    def test_a_refusal_and_a_wait_in_vain_are_not_logged(self, place):
        with jupyter_gpu.acquire(2):
            refused(1)
            refused(1, wait=0.2)
        assert len(self.entries(place)) == 2

    def test_a_program_that_was_killed_has_ended_by_a_sweep(self, place, program):
        killed = program(ASK)
        assert killed.tell("1") == "got 0"
        (granted,) = self.entries(place)
        killed.kill()
        assert self.entries(place) == [granted]
        with LeaseStore(place, write=True) as store:
            store.sweep()
            store.sweep()
        _, ended = self.entries(place)
        assert (ended.lease, ended.exact) == (granted.lease, False)
