import dataclasses
import os
import signal
import subprocess
import sys

import pytest
from doubles import gpu as gpu_double
from doubles.fixtures import driver_double, driver_libraries
from support_cli import gpu, gpu_json, kernel

import jupyter_gpu
from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.layout import LEASE_IDS, QUEUE, Range, device_range
from jupyter_gpu.doctor import examine
from jupyter_gpu.overview import read_overview

__all__ = ["driver_double", "driver_libraries"]

HOLD = """
import os, sys
from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.core.layout import Range
fd = os.open(sys.argv[1], os.O_RDWR)
assert locks.try_lock(fd, Range(int(sys.argv[2]), int(sys.argv[3])))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def squat(program, lease_directory):
    """A process that locks a range of the lock file and leaves no record."""

    def start(where):
        with jupyter_gpu.acquire(1):
            pass  # makes the lease directory
        child = program(HOLD, arguments=(lease_directory / "lock", where.start, where.length))
        assert child.read() == "locked"
        return child

    return start


def find(name):
    return [check for check in examine(os.environ) if check.name == name]


def one(name):
    (check,) = find(name)
    return check


def test_a_sound_machine_has_nothing_to_mend(eight_gpus):
    with jupyter_gpu.acquire(2):
        found = examine(os.environ)
    assert {check.status for check in found} <= {"ok", "warn"}
    assert one("driver").found == ("simulated machine, NVIDIA 580.95.05, CUDA 13.0, 8 GPUs")
    leases = next(check for check in found if check.name == "leases")
    assert leases.found == "1 lease, 0 waiting"


def test_looking_makes_no_lease_directory(eight_gpus, lease_directory):
    examine(os.environ)
    assert not lease_directory.exists()
    assert "made at the first lease" in one("lease directory").found


def test_a_machine_without_a_driver_is_a_warning_with_what_mends_it(driver_double):
    said = driver_double.python(
        "import os; from jupyter_gpu.doctor import examine; print(examine(os.environ)[0])",
        LD_LIBRARY_PATH="/nowhere",
    )
    assert "status='warn'" in said
    assert "fix='install the driver" in said


def test_a_driver_that_fails_is_a_failure(driver_double):
    driver_double.write(errors={"nvmlInit": 18})
    said = driver_double.python(
        "import os; from jupyter_gpu.doctor import examine; print(examine(os.environ)[0])"
    )
    assert "status='fail'" in said
    assert "reboot the machine" in said


def test_a_broken_gpu_is_a_warning(simulate):
    simulate({"gpus": [{"name": "NVIDIA L4", "problem": "GPU 0 is lost; reboot the machine."}]})
    check = one("GPU 0")
    assert (check.status, check.found, check.fix) == ("warn", "GPU 0 is lost", "reboot the machine")


def test_a_simulation_that_cannot_be_read_is_a_failure(monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "1xNOTHING")
    assert one("driver").status == "fail"


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("CUDA_VISIBLE_DEVICES", "1,0", "ok"),
        ("CUDA_VISIBLE_DEVICES", "-1", "ok"),
        ("CUDA_VISIBLE_DEVICES", "0-2", "warn"),
        ("CUDA_VISABLE_DEVICES", "0", "warn"),
    ],
)
def test_what_is_visible_is_read_as_the_driver_reads_it(
    eight_gpus, monkeypatch, variable, value, status
):
    monkeypatch.setenv(variable, value)
    check = one("CUDA_VISIBLE_DEVICES")
    assert check.status == status
    assert (check.fix is None) == (status == "ok")


def test_a_lease_directory_that_cannot_be_used_is_a_failure(eight_gpus, lease_directory):
    lease_directory.write_text("")
    check = one("lease directory")
    assert check.status == "fail"
    assert "JUPYTER_GPU_LEASE_DIR" in check.fix


def test_records_that_cannot_be_written_are_a_failure(eight_gpus, lease_directory):
    with jupyter_gpu.acquire(1):
        pass
    for path in sorted((lease_directory / "records").iterdir()):
        path.unlink()
    (lease_directory / "records").rmdir()
    (lease_directory / "records").write_text("")
    assert one("lease directory").status == "fail"


def test_an_unknown_layout_is_a_failure(eight_gpus, lease_directory):
    with jupyter_gpu.acquire(1):
        pass
    (lease_directory / "layout").write_text("99\n")
    assert "layout '99'" in one("lease directory").found


def test_a_device_locked_without_a_record_is_a_failure_that_names_the_process(eight_gpus, squat):
    child = squat(device_range(None, eight_gpus.devices[3].uuid))
    check = one("stray lock")
    assert check.status == "fail"
    assert check.found.startswith("GPU 3 is locked by a program that left no record")
    assert f"{child.pid} of " in check.found
    assert check.fix == f"kill {child.pid}"


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (LEASE_IDS, "a lease id"),
        (Range(LEASE_IDS.start + 5, 1), "a lease id"),
        (QUEUE, "the queue"),
    ],
)
def test_locked_ids_and_a_locked_queue_are_failures(eight_gpus, squat, where, what):
    child = squat(where)
    checks = find("stray lock")
    assert any(check.found.startswith(what) for check in checks)
    assert all(str(child.pid) in check.fix for check in checks)


def test_a_lease_that_gave_its_devices_up_is_no_stray_lock(eight_gpus, lease_directory):
    with jupyter_gpu.acquire(1) as lease:
        lease.claim.keep_only(())
        with Witness(Place(lease_directory, "given")) as witness:
            witness.publish(dataclasses.replace(lease.record, uuids=(), indices=()))
            assert find("stray lock") == []
            witness.remove_record(lease.id)
        assert one("stray lock").found.startswith("a lease id")


def test_a_lease_that_is_only_kept_by_workers_is_a_warning(eight_gpus, program):
    code = (
        "import os, sys, jupyter_gpu\n"
        "held = jupyter_gpu.acquire(2)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.stdin.read(); os._exit(0)\n"
        "print(pid, flush=True)\n"
        "os._exit(0)\n"
    )
    parent = program(code)
    worker = int(parent.read())
    parent.process.wait(timeout=10)
    (check,) = [
        check
        for check in examine(os.environ)
        if check.name.startswith("lease ") and check.name != "lease directory"
    ]
    assert check.status == "warn"
    assert f"kept by process {worker} (" in check.found
    assert check.fix == f"jupyter gpu release {check.name.removeprefix('lease ')}"
    parent.process.stdin.close()
    parent.process.stdin = open(os.devnull, "w")


STRAY = """
import subprocess, sys
import jupyter_gpu
held = jupyter_gpu.acquire(1)
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_who_uses_a_device_without_a_lease_is_a_warning_that_names_the_owner(simulate, program):
    holder = program("import sys; print('up'); sys.stdin.read()")
    holder.read()

    def machine(*pids):
        gpus = [{"name": "L4", "processes": [{"pid": pid, "memory_bytes": 5} for pid in pids]}]
        return simulate({"gpus": [*gpus, {"name": "L4"}]})

    machine()
    leased = program(STRAY)
    child = int(leased.read())
    machine(holder.pid, leased.pid, child, 2**22 + 1)
    check = one(f"stray {holder.pid}")
    assert check.status == "warn"
    user = processes.user_name(os.getuid())
    assert check.found.startswith(f"GPU 0 is used without a lease by {user}: {holder.pid} ")
    names = [found.name for found in examine(os.environ)]
    assert [name for name in names if name.startswith("stray ")] == [check.name]


def test_a_zombie_is_labelled_and_is_no_stray(simulate, program, eventually):
    child = program("print('up'); input()")
    child.read()
    child.signal(signal.SIGKILL)
    eventually(lambda: processes.look(child.pid).state == "Z")
    listed = [{"pid": child.pid, "memory_bytes": 5}]
    simulate({"gpus": [{"name": "L4", "memory_used_bytes": 2**33, "processes": listed}]})
    names = {check.name for check in examine(os.environ)}
    assert names >= {f"zombie {child.pid}", "memory"}
    assert f"stray {child.pid}" not in names
    assert f"its parent {os.getpid()} (" in one(f"zombie {child.pid}").found


def test_where_there_are_no_locks_it_says_so(eight_gpus, monkeypatch):
    monkeypatch.setattr(locks, "possible", lambda: False)
    check = one("lease directory")
    assert check.status == "warn"
    assert "Not exclusive here" in check.found


def test_the_command_says_what_mends_each_finding_and_fails_for_a_failure(
    capsys, eight_gpus, lease_directory, monkeypatch
):
    monkeypatch.setenv("PATH", "")
    assert gpu(capsys, "doctor")[0] == 0
    lease_directory.write_text("")
    code, out, err = gpu(capsys, "doctor")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("fail  lease directory: "))
    assert any(line.startswith("      → ") for line in lines[at + 1 : at + 4])
    assert "1 failed" in lines[0]


def test_the_driver_is_asked_by_a_fresh_process_beside_nvml(driver_double):
    driver_double.write(gpu_double(0), gpu_double(1))
    said = driver_double.python(
        "import os; from jupyter_gpu.doctor import examine\n"
        "print([c.found for c in examine(os.environ) if c.name == 'CUDA driver'])",
        CUDA_VISIBLE_DEVICES="1",
    )
    assert "shows a fresh process 1 device (cuda:0 = physical 1); NVML lists 2 GPUs" in said


def test_outside_a_kernel_nothing_is_said_of_one(eight_gpus):
    names = {check.name for check in examine(os.environ)}
    assert not names & {"CUDA in this kernel", "lease of this kernel", "fork"}
    torch = [check for check in examine(os.environ) if check.name == "torch"]
    assert all(f" in {sys.executable}" in check.found for check in torch)


def test_a_kernels_overview_adds_what_only_it_knows(eight_gpus):
    seen = dataclasses.replace(read_overview(os.environ), process=kernel(state="simulated"))
    names = [check.name for check in examine(os.environ, seen)]
    assert {"CUDA in this kernel", "lease of this kernel"} <= set(names)


def test_a_kernels_own_lease_is_one_line(eight_gpus):
    with jupyter_gpu.acquire(1) as held:
        seen = read_overview(os.environ)
        lease = dataclasses.replace(seen.holdings.leases[0], note="both cannot be true")
        seen = dataclasses.replace(
            seen,
            holdings=dataclasses.replace(seen.holdings, leases=(lease,)),
            process=kernel(state="simulated", lease_id=held.id),
        )
        found = [check for check in examine(os.environ, seen) if "both cannot" in check.found]
    assert [check.name for check in found] == ["lease of this kernel"]


def test_its_json_has_every_check(capsys, eight_gpus, monkeypatch):
    monkeypatch.setenv("PATH", "")
    checks = gpu_json(capsys, "doctor")["checks"]
    assert {"driver", "CUDA_VISIBLE_DEVICES", "lease directory", "leases", "servers"} <= {
        check["name"] for check in checks
    }
    for check in checks:
        assert set(check) == {"name", "status", "found", "fix"}
        assert (check["fix"] is None) == (check["status"] == "ok")


def test_a_server_environment_without_the_package_is_found_from_the_kernels(
    capsys, eight_gpus, tmp_path, monkeypatch
):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "server"], check=True)
    lab = tmp_path / "server/bin/jupyter-lab"
    lab.write_text(f"#!{tmp_path}/server/bin/python\n")
    lab.chmod(0o755)
    monkeypatch.setenv("PATH", str(lab.parent))
    code, out, _ = gpu(capsys, "doctor")
    assert code == 1
    assert "lacks jupyter-gpu" in " ".join(out.split())
    assert f"→ {tmp_path}/server/bin/python -m pip install jupyter-gpu" in out
