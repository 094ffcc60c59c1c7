"""The kernel wrapper: its command line, and what it brings into the process before ipykernel."""

import json
import os
import subprocess
import sys

import pytest
from kernels import leases

import jupyter_gpu
from jupyter_gpu.adapters.request_file import request_path
from jupyter_gpu.core.request import Request
from jupyter_gpu.kernel import Arguments, read_arguments
from jupyter_gpu.wish import leave_wish

FILE = "/run/user/0/kernel-1b4e28ba-2fa1-11d2-883f-0016d3cca427.json"

PREPARE = """
import json, os, sys
from jupyter_gpu.kernel import prepare, read_arguments
notice = prepare(read_arguments(sys.argv[1:]))
print(json.dumps({"notice": notice, "environ": dict(os.environ), "pid": os.getpid()}))
sys.stdin.read()
"""


def read(*argv):
    return read_arguments(list(argv))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((), Arguments({}, None, None, ())),
        (("-f", FILE), Arguments({}, None, FILE, ())),
        (("-f=" + FILE,), Arguments({}, None, FILE, ())),
        (("--f=" + FILE,), Arguments({}, None, FILE, ())),
        (("--f", FILE), Arguments({}, None, FILE, ())),
        (("--gpus=2", "-f", FILE), Arguments({"gpus": "2"}, None, FILE, ())),
        (("-f", FILE, "--gpus", "2"), Arguments({"gpus": "2"}, None, FILE, ())),
        (
            ("--gpus=2", "--framework=torch", "--f=" + FILE),
            Arguments({"gpus": "2"}, "torch", FILE, ()),
        ),
        (("--framework", "torch"), Arguments({}, "torch", None, ())),
        (
            ("--min-free-memory=20GiB", "--on-unavailable", "wait"),
            Arguments({"min_free_memory": "20GiB", "on_unavailable": "wait"}, None, None, ()),
        ),
        (
            ("--devices=0,3", "--model=H200", "--wait=10m", "--identifiers=uuid"),
            Arguments(
                {"devices": "0,3", "model": "H200", "wait": "10m", "identifiers": "uuid"},
                None,
                None,
                (),
            ),
        ),
        (("--gpus=1", "--gpus=2"), Arguments({"gpus": "2"}, None, None, ())),
        (("--gpus=",), Arguments({"gpus": ""}, None, None, ())),
        (("--gpus",), Arguments({"gpus": ""}, None, None, ())),
        (("-f",), Arguments({}, None, "", ())),
        (("--devices=a=b",), Arguments({"devices": "a=b"}, None, None, ())),
        (("-f", "/a file=1.json"), Arguments({}, None, "/a file=1.json", ())),
    ],
)
def test_it_reads_its_own_options_and_the_connection_file(argv, expected):
    assert read(*argv) == expected


@pytest.mark.parametrize(
    "word",
    [
        "--HistoryManager.hist_file=:memory:",
        "--IPKernelApp.exec_lines=['x = 1']",
        "--debug",
        "--pylab",
        "--no-secure",
        "--colors=nocolor",
        "--fast",
        "-i",
        "",
        "-",
        "--",
    ],
)
def test_what_is_not_ours_goes_on_to_ipykernel_in_its_order(word):
    expected = Arguments({"gpus": "1"}, None, FILE, (word, "--matplotlib", word))
    assert read(word, "--gpus=1", "--matplotlib", "-f", FILE, word) == expected


@pytest.fixture
def prepared(simulate, program):
    """Run the wrapper up to ipykernel in a process of its own, which then waits."""
    simulate("4xH200")

    def start(*argv, environ=None, pass_fds=()):
        child = program(PREPARE, environ=environ, pass_fds=pass_fds, arguments=argv)
        return child, json.loads(child.read())

    return start




def test_it_leases_for_itself_where_nobody_has(prepared):
    child, told = prepared("--gpus=2", "-f", FILE)
    (lease,) = leases()
    assert told["notice"] is None
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert told["environ"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert told["environ"]["JUPYTER_GPU_LEASE"] == lease.record.id
    assert lease.pids == (child.pid,)
    assert lease.record.owner.kernel_id == "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    assert child.end() == 0
    assert leases() == ()


def test_a_connection_file_of_another_name_has_no_kernel_id(prepared):
    prepared("-f", "/tmp/tmpv8q2.json")
    (lease,) = leases()
    assert lease.record.owner.kernel_id is None


def test_its_own_traces_do_not_reach_programs_that_the_kernel_starts(prepared):
    stale = {"JUPYTER_GPU_LEASE_FD": "3", "JUPYTER_GPU_NOTICE": "of another kernel"}
    _, told = prepared("--gpus=1", environ=stale | {"JUPYTER_GPU_PROVISIONED": "1"})
    names = {name for name in told["environ"] if name.startswith("JUPYTER_GPU_")}
    assert names == {"JUPYTER_GPU_SIMULATE", "JUPYTER_GPU_LEASE_DIR", "JUPYTER_GPU_LEASE"}


def test_it_keeps_the_lease_it_was_started_with(prepared):
    with jupyter_gpu.acquire(2) as lease:
        environ = lease.environment | {"JUPYTER_GPU_NOTICE": "The pool is small."}
        child, told = prepared("--gpus=1", environ=environ, pass_fds=lease.pass_fds)
        assert [one.record.id for one in leases()] == [lease.id]
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert told["notice"] is None  # said in the server's log, and by %gpu
    assert told["environ"]["JUPYTER_GPU_NOTICE"] == "The pool is small."
    with pytest.raises(jupyter_gpu.NoDeviceAvailable):
        jupyter_gpu.acquire(3)
    child.end()


def test_it_decides_nothing_again_that_its_provisioner_has_decided(prepared):
    environ = {"CUDA_VISIBLE_DEVICES": "-1", "JUPYTER_GPU_PROVISIONED": str(os.getpid())}
    _, told = prepared("--gpus=2", environ=environ)
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "JUPYTER_GPU_PROVISIONED" not in told["environ"]
    assert leases() == ()


def test_the_word_of_a_provisioner_further_up_does_not_count(prepared):
    _, told = prepared("--gpus=2", environ={"JUPYTER_GPU_PROVISIONED": str(os.getppid())})
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert len(leases()) == 1


def test_a_kernel_started_in_a_leased_one_parts_its_devices(prepared):
    with jupyter_gpu.acquire(2, devices=[2, 3]) as above:
        child, told = prepared("--gpus=1", environ={"JUPYTER_GPU_LEASE": above.id})
        assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "2"
        assert told["environ"]["JUPYTER_GPU_LEASE"] != above.id
        child.end()


def test_a_lease_that_has_ended_is_no_lease_above(prepared):
    _, told = prepared("--gpus=1", environ={"JUPYTER_GPU_LEASE": "0123456789abcdef"})
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert told["environ"]["JUPYTER_GPU_LEASE"] != "0123456789abcdef"


def test_a_limit_of_the_environment_is_the_pool(prepared):
    _, told = prepared("--gpus=1", environ={"CUDA_VISIBLE_DEVICES": "3"})
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "3"


def test_no_gpu_asked_for_is_no_gpu_and_no_notice(prepared):
    _, told = prepared("--gpus=0", "--framework=torch")
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert told["notice"] is None
    assert leases() == ()


@pytest.mark.parametrize(
    ("argv", "environ", "sentence"),
    [
        (("--gpus=0.5",), {}, "gpus: '0.5' is not a number of GPUs"),
        (("--gpus",), {}, "gpus: '' is not a number of GPUs"),
        (("--gpus=5",), {}, "5 GPUs"),
        (("--wait=never",), {}, "wait: 'never' is not"),
        (("--wait=never", "--on-unavailable=error"), {}, "wait: 'never' is not"),
        (("--wait=never", "--on-unavailable=wait"), {}, "wait: 'never' is not"),
        (("--gpus=1",), {"JUPYTER_GPU_SIMULATE": "many"}, "JUPYTER_GPU_SIMULATE=many"),
        (("--gpus=1",), {"JUPYTER_GPU_LEASE_DIR": "/dev/null"}, "GPUs cannot be leased"),
        (("--gpus=1",), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES="),
    ],
)
def test_a_request_that_cannot_be_met_gives_a_kernel_without_gpu_and_the_reason(
    prepared, argv, environ, sentence
):
    child, told = prepared(*argv, environ=environ)
    assert told["notice"].startswith("This kernel has no GPU.\n")
    assert sentence in told["notice"]
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert told["environ"]["JUPYTER_GPU_NOTICE"] == told["notice"]
    assert child.end() == 0


def test_a_failure_of_our_own_gives_a_kernel_without_gpu_and_no_restart_loop(prepared, program):
    code = PREPARE.replace(
        "from jupyter_gpu.kernel",
        "import jupyter_gpu.allocator\n"
        "def broken(acquisition): raise RuntimeError('a bug')\n"
        "jupyter_gpu.allocator.acquire_now = broken\n"
        "from jupyter_gpu.kernel",
    )
    told = json.loads(program(code).read())
    assert told["notice"] == "This kernel has no GPU. Leasing failed: RuntimeError: a bug"
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_persons_own_framework_settings_stay(prepared):
    _, told = prepared("--gpus=1", environ={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert told["environ"]["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"
    assert told["environ"]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_importing_the_wrapper_imports_nothing_that_a_kernel_could_do_without():
    code = (
        "import sys; import jupyter_gpu.kernel; "
        "print(sorted(m for m in sys.modules if m.startswith(('IPython', 'ipykernel', 'torch', "
        "'pynvml', 'tornado', 'zmq', 'jupyter_client', 'asyncio'))))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("--gpuss=2", "gpuss"),
        ("--gpu=2", "gpu"),
        ("--device=0", "device"),
        ("--min-free-memmory=1GiB", "min_free_memmory"),
        ("--topology=prefer", "topology"),
        ("--memory-cap=10GiB", "memory_cap"),
        ("--cpu_affinity=on", "cpu_affinity"),
        ("--num-gpus=2", "num_gpus"),
        ("--GPUs=2", "GPUs"),
        ("gpus=2", "gpus"),
        ("-gpus=2", "gpus"),
    ],
)
def test_a_misspelt_or_later_option_is_read_as_one_so_that_it_is_refused_by_name(word, name):
    arguments = read_arguments([word, "-f", "file"])
    assert list(arguments.options) == [name]
    assert arguments.rest == ()


@pytest.mark.parametrize("word", ["--gui=qt", "--debug", "--IPKernelApp.x=1", "--ip=1.2.3.4"])
def test_ipykernels_own_words_go_on_to_it(word):
    assert read_arguments([word, "-f", "file"]).rest == (word,)


def test_what_was_wished_before_the_restart_comes_first(prepared, tmp_path):
    file = str(tmp_path / "kernel-1b4e28ba.json")
    leave_wish(file, Request(gpus=2, devices=("3", "1"), wait_seconds=0))
    child, told = prepared("--gpus=1", "-f", file)
    assert (told["environ"]["CUDA_VISIBLE_DEVICES"], told["notice"]) == ("3,1", None)
    child.end()
    _, told = prepared("--gpus=1", "-f", file)
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_wish_that_cannot_be_granted_is_told_and_the_command_line_counts(prepared, tmp_path):
    file = str(tmp_path / "kernel-1b4e28ba.json")
    leave_wish(file, Request(gpus=3, wait_seconds=0))
    with jupyter_gpu.acquire(2):
        child, told = prepared("--gpus=1", "-f", file)
    assert told["environ"]["CUDA_VISIBLE_DEVICES"] == "2"
    assert told["notice"].startswith("3 GPUs, as %gpu use had asked for, could not be had.\nNo 3")
    assert told["notice"].endswith("This kernel has physical 2.")
    child.end()
    request_path(file).symlink_to("/etc/passwd")
    _, told = prepared("--gpus=9", "-f", file)
    assert "it is not a plain file" in told["notice"]
    assert "This kernel has no GPU." in told["notice"]
    assert "9 GPUs are asked for" in told["notice"]


def test_what_the_provisioner_wants_told_at_once_is(prepared):
    environ = {
        "JUPYTER_GPU_PROVISIONED": str(os.getpid()),
        "JUPYTER_GPU_NOTICE": "They could not be had.",
    }
    assert prepared(environ=environ)[1]["notice"] is None
    _, told = prepared(environ=environ | {"JUPYTER_GPU_ANNOUNCE": "1"})
    assert told["notice"] == "They could not be had."
    assert "JUPYTER_GPU_ANNOUNCE" not in told["environ"]


def test_limits_of_the_start_are_kept_for_later(prepared):
    _, told = prepared("--gpus=1", environ={"CUDA_VISIBLE_DEVICES": "3,2"})
    assert told["environ"]["JUPYTER_GPU_POOL"] == '[["3,2", "the environment"]]'
