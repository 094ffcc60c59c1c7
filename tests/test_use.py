"""``%gpu use`` in a real shell on a simulated machine: nobody has leased for this process."""

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest
from kernels import free_count, keepers, leases
from support_shell import make_shell

import jupyter_gpu
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.own_lease import find_own_lease


@pytest.fixture(autouse=True)
def _variables_as_they_were(_a_clean_environment):
    """Take back what a change has set in this process."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def shell(eight_gpus):
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield shell
        if find_own_lease(os.environ) is not None:
            shell.run_line_magic("gpu", "use 0")


def use(shell, line):
    return shell.run_line_magic("gpu", f"use {line} --json")


def outside(function, *arguments):
    """Call a function as a program would that runs under no lease."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_GPU_LEASE", "CUDA_VISIBLE_DEVICES"):
            patch.delenv(name, raising=False)
        return function(*arguments)


def free():
    return outside(free_count)


def complaint(shell, cell):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        shell.run_cell(cell)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return (out.getvalue() + err.getvalue()).strip()


def visible():
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def indices(answer):
    return [device["index"] for device in answer["devices"]]


def test_a_kernel_that_nobody_leased_for_gets_a_lease_then_and_there(shell):
    answer = use(shell, "2")
    assert indices(answer) == [0, 1]
    assert (visible(), os.environ["CUDA_DEVICE_ORDER"]) == ("0,1", "PCI_BUS_ID")
    (lease,) = leases()
    assert (
        os.environ["JUPYTER_GPU_LEASE"] == lease.record.id == find_own_lease(os.environ).record.id
    )
    assert (lease.pids, lease.record.owner.kind) == ((os.getpid(),), "kernel")
    assert keepers(lease) == [os.getpid()]
    assert answer["lease"]["indices"] == [0, 1]
    assert answer["when"] == "now"
    json.dumps(answer)
    assert repr(shell.run_line_magic("gpu", "")).startswith("2 of 8 GPUs are yours")


def test_programs_inherit_the_variables_and_not_the_lease(shell):
    use(shell, "1")
    code = (
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], sorted(os.listdir('/proc/self/fd')))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code + "; input()"], stdin=-1, stdout=-1, close_fds=False
    )
    try:
        assert child.stdout.readline().startswith(b"0 ")
        (lease,) = leases()
        assert keepers(lease) == [os.getpid()]
    finally:
        child.communicate(b"\n")
    assert "JUPYTER_GPU_LEASE_FD" not in os.environ


def test_the_answer_is_the_new_map_as_text_and_as_html(shell):
    bundle = shell.run_line_magic("gpu", "use 5,3")._repr_mimebundle_()
    for form in ("text/plain", "text/html"):
        assert "2 of 8 GPUs are yours now" in bundle[form]
        assert "cuda:0 = physical 5" in bundle[form]
        assert "cuda:1 = physical 3" in bundle[form]
        assert "Leased since " in bundle[form]
    assert visible() == "5,3"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("3", [0, 1, 2]),
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("1,3", [1, 3]),
        ("3,1", [3, 1]),
        ("--devices 3", [3]),
        ("1 --devices 6,7", [6]),
        ("--model H200", [0]),
        ("2 --model h200 --min-free-memory 20GiB", [0, 1]),
        ("1 --wait 1s", [0]),
        ("1 --restart", [0]),
    ],
)
def test_a_number_is_a_count_and_a_list_names_devices(shell, line, expected):
    assert indices(use(shell, line)) == expected
    assert visible() == ",".join(map(str, expected))


def test_a_uuid_names_a_device(shell, eight_gpus):
    assert indices(use(shell, eight_gpus.devices[4].uuid)) == [4]


def test_more_devices_keep_the_ones_there_are_and_fewer_give_the_rest_back(shell):
    use(shell, "5")
    first = os.environ["JUPYTER_GPU_LEASE"]
    use(shell, "--devices 6")
    assert (visible(), free()) == ("6", 7)
    answer = use(shell, "2")
    assert indices(answer) == [0, 6]
    assert "Before: physical 0, 6." in repr(shell.run_line_magic("gpu", "use 3"))
    assert use(shell, "1")["lease"]["indices"] == [0]
    assert free() == 7
    assert os.environ["JUPYTER_GPU_LEASE"] == first
    assert [lease.record.id for lease in leases()] == [first]


def test_none_gives_all_back(shell):
    use(shell, "4")
    assert "This kernel has no GPU now" in repr(shell.run_line_magic("gpu", "use 0"))
    assert visible() == "-1"
    assert "JUPYTER_GPU_LEASE" not in os.environ
    assert leases() == ()
    assert free() == 8
    assert repr(shell.run_line_magic("gpu", "")).startswith("No GPU is visible")
    assert indices(use(shell, "2")) == [0, 1]


def test_none_where_there_was_none(shell):
    assert indices(use(shell, "0")) == []
    assert visible() == "-1"


def test_a_refusal_names_the_holders_and_changes_nothing(shell):
    use(shell, "2")
    before = dict(os.environ)
    with outside(jupyter_gpu.acquire, 5):
        said = complaint(shell, "%gpu use 4")
        assert said.startswith("No 4 GPUs are free (8 on this machine).")
        assert "2, 3, 4, 5, 6  root" in said
        assert "0, 1  yours already" in said
        assert "7  free, but 4 are needed" in said
        assert "%gpu use 4 --wait 30m" in said
        assert "Or take 3:  %gpu use 3" in said
        assert dict(os.environ) == before
        held = {lease.record.indices for lease in leases()}
        assert held == {(0, 1), (2, 3, 4, 5, 6)}
        named = complaint(shell, "%gpu use 6,7")
        assert "%gpu use 6,7 --wait 30m" in named


def test_what_this_machine_can_never_give_is_said(shell):
    assert "9 GPUs are asked for, and this machine has 8" in complaint(shell, "%gpu use 9")
    assert "There is no device 9 here" in complaint(shell, "%gpu use 1,9")
    assert "of model L4" in complaint(shell, "%gpu use --model L4")
    assert leases() == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "say how many, or which"),
        ("2 3", "is not understood"),
        ("1,3 --devices 2", "named twice"),
        ("2 --restrat", "--restart"),
    ],
)
def test_wrong_use_is_one_line(shell, line, words):
    said = complaint(shell, f"%gpu use {line}")
    assert said.startswith("UsageError: ")
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("line", ["two", "5/4", "0.5", "1,", "1,1", "2 --wait soon", "mig:big"])
def test_a_request_that_cannot_be_read_is_refused_by_name(shell, line):
    option = "wait" if "wait" in line else "devices" if "," in line else "gpus"
    assert f"{option}: " in complaint(shell, f"%gpu use {line}")
    assert leases() == ()


def test_a_value_that_stood_there_at_the_start_is_the_pool(eight_gpus, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_POOL", '[["2,5", "the environment"]]')
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        assert indices(use(shell, "1")) == [2]
        assert "CUDA_VISIBLE_DEVICES=2,5 in the environment" in repr(
            shell.run_line_magic("gpu", "use 2")
        )
        assert "leaves 2, 5" in complaint(shell, "%gpu use 3")
        use(shell, "0")


def test_what_the_persons_own_code_has_leased_is_not_this_kernels(shell):
    with jupyter_gpu.acquire(2):
        assert find_own_lease(os.environ) is None
        assert indices(use(shell, "1")) == [2]
        use(shell, "0")
        assert len(leases()) == 1


def test_a_lease_above_is_parted(shell, monkeypatch):
    with jupyter_gpu.acquire(3, devices=[4, 5, 6]) as above:
        monkeypatch.setenv("JUPYTER_GPU_LEASE", above.id)
        assert indices(use(shell, "2")) == [4, 5]
        assert "outside the pool" in complaint(shell, "%gpu use 1,2")
        assert indices(use(shell, "5,6")) == [5, 6]
        use(shell, "0")
        assert os.environ["JUPYTER_GPU_LEASE"] == above.id


def test_one_device(simulate):
    simulate("1xH200")
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        assert indices(use(shell, "1")) == [0]
        assert indices(use(shell, "all")) == [0]
        assert "2 GPUs are asked for" in complaint(shell, "%gpu use 2")
        assert visible() == "0"
        use(shell, "0")


def test_forked_workers_keep_what_they_may_use(shell):
    use(shell, "2")
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        said = complaint(shell, "%gpu use 2,3")
        assert "Physical 0, 1 cannot be given back now" in said
        assert str(pid) in said
        assert visible() == "0,1"
        assert indices(use(shell, "3")) == [0, 1, 2]  # nothing is given back
        assert free() == 5
    finally:
        os.close(theirs)
        os.waitpid(pid, 0)
        os.close(ours)
    assert indices(use(shell, "2,3")) == [2, 3]


def test_a_fork_is_sent_to_its_kernel(shell):
    use(shell, "1")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            shell.run_line_magic("gpu", "use 2")
        except jupyter_gpu.GPUError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"forked" in os.read(read, 999)
    os.close(read)
    os.close(write)


def test_a_lease_whose_record_is_lost_is_changed_all_the_same(shell):
    use(shell, "2")
    place = find_place(os.environ, simulated=is_simulated(os.environ))
    for record in (place.directory / "records").glob("*.json"):
        record.unlink()
    assert indices(use(shell, "3")) == [0, 1, 2]
    assert [lease.record.indices for lease in leases()] == [(0, 1, 2)]
    assert free() == 5
