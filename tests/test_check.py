"""``%gpu check`` in a real shell, and in real processes over the doubles of the driver."""

import contextlib
import io
import json
import os
import re
import time

import pytest
from doubles import gpu, mig
from doubles.fixtures import driver_double, driver_libraries
from support_shell import make_shell
from test_pyplatforms import ELSEWHERE

import jupyter_gpu

__all__ = ["driver_double", "driver_libraries"]

# A shell with the extension, which runs some cells and then prints what %gpu check returns.
CELLS = """
import json, os, sys
sys.path.insert(0, {tests!r})
import warnings
warnings.simplefilter("ignore")  # other packages' own
from support_shell import make_shell
with make_shell() as shell:
    shell.run_line_magic("load_ext", "jupyter_gpu")
    for cell in json.loads({cells!r}):
        shell.run_cell(cell, store_history=True)
    answer = shell.run_line_magic("gpu", "check --json")
    text = repr(shell.run_line_magic("gpu", "check"))
    state = shell.run_line_magic("gpu", "--json")["process"]["state"]
print()
print(json.dumps([answer, text, state]))
"""
FREEZE = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0)"


class Checked:
    """The checks of one kernel, by name."""

    def __init__(self, answer, text, state):
        assert answer["schema"] == 1
        self.checks, self.text, self.state = answer["checks"], text, state
        for check in self.checks:
            assert set(check) == {"name", "status", "found", "fix"}
            assert check["status"] in ("ok", "warn", "fail")
            assert (check["fix"] is None) == (check["status"] == "ok"), check

    def one(self, name):
        (found,) = [check for check in self.checks if check["name"] == name]
        return found


@pytest.fixture
def check(driver_double, lease_directory, tmp_path):
    """Run cells in a fresh process on the machine, and return what ``%gpu check`` says then."""

    def run(*cells, **variables):
        code = CELLS.format(tests=os.path.dirname(__file__), cells=json.dumps(cells))
        said = driver_double.run(
            os.sys.executable,
            "-c",
            code,
            JUPYTER_GPU_LEASE_DIR=str(lease_directory),
            IPYTHONDIR=str(tmp_path / "ipython"),
            **variables,
        )
        return Checked(*json.loads(said.rstrip().rpartition("\n")[2]))

    return run


@pytest.fixture
def shell(eight_gpus):
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield shell


def test_it_is_text_and_html_with_the_sum_first(shell):
    bundle = shell.run_line_magic("gpu", "check")._repr_mimebundle_()
    text, html = bundle["text/plain"], bundle["text/html"]
    assert re.match(r"\d+ checks: ", text)
    assert "\nok    driver: simulated machine" in text
    assert "\nok    CUDA in this kernel: simulated" in text
    assert ">ok<" in html
    commands = re.compile(r"      → ")
    assert all(len(line) <= 80 for line in text.splitlines() if not commands.match(line))


def test_it_says_nothing_twice(shell):
    answer = shell.run_line_magic("gpu", "check --json")
    found = [check["found"] for check in answer["checks"]]
    assert len(found) == len(set(found))


def test_a_leased_kernel_has_a_lease_that_is_in_order(shell, monkeypatch):
    with jupyter_gpu.acquire(2) as held:
        for name, value in held.environment.items():
            monkeypatch.setenv(name, value)
        answer = shell.run_line_magic("gpu", "check --json")
        checked = Checked(answer, "", "")
        assert checked.one("lease of this kernel")["status"] == "ok"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
        checked = Checked(shell.run_line_magic("gpu", "check --json"), "", "")
        assert checked.one("lease of this kernel")["status"] == "warn"


def test_wrong_words_are_one_line(shell):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        shell.run_cell("%gpu check it")
    said = (out.getvalue() + err.getvalue()).strip()
    assert said.startswith("UsageError: ")
    assert "\n" not in said


def test_in_a_sound_kernel_nothing_is_wrong_and_nothing_is_initialised(check, driver_double):
    driver_double.write(gpu(0), gpu(1))
    checked = check(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    for name in ("driver", "NVML", "CUDA driver", "CUDA_VISIBLE_DEVICES", "CUDA in this kernel"):
        assert checked.one(name)["status"] == "ok"
    assert "cuda:0 = physical 1" in checked.one("CUDA driver")["found"]
    assert checked.state == "open"
    assert not any(check["status"] == "fail" for check in checked.checks)


def test_b14_a_kernel_that_was_frozen_and_changed_too_late(check, driver_double):
    driver_double.write(gpu(0), gpu(1))
    checked = check(FREEZE, "%env CUDA_VISIBLE_DEVICES=0", CUDA_VISIBLE_DEVICES="1")
    value = checked.one("CUDA_VISIBLE_DEVICES")
    assert value["status"] == "warn"
    assert "changes nothing in this kernel: in force is cuda:0 = physical 1" in value["found"]
    assert "cell [1]" in checked.one("CUDA in this kernel")["found"]


@pytest.mark.parametrize(
    ("variables", "name", "status", "words"),
    [
        pytest.param(
            {"CUDA_VISIBLE": "1"}, "CUDA_VISIBLE_DEVICES", "warn", "did you mean", id="B16"
        ),
        pytest.param(
            {"CUDA_VISABLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES", "warn", "did you mean", id="B17"
        ),
        pytest.param(
            {"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"},
            "JAX memory fraction", "fail", "ValueError", id="B21",
        ),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, "CUDA driver", "ok", "cuInit 100", id="B61"),
        pytest.param(
            {"SLURM_JOB_ID": "9", "SLURMD_NODENAME": "n", "SLURM_JOB_GPUS": "5",
             "CUDA_VISIBLE_DEVICES": "0"},
            "Slurm", "ok", "SLURM_JOB_GPUS 5 counts on the whole node", id="B90",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "9", "SLURMD_NODENAME": "n", "SLURM_STEP_GPUS": "7",
             "CUDA_VISIBLE_DEVICES": "7"},
            "CUDA_VISIBLE_DEVICES", "warn", "the scheduler's number", id="B94",
        ),
        (
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"},
            "MPS", "warn", "no control daemon runs in /nowhere",
        ),
    ],
)  # fmt: skip
def test_variables(check, driver_double, variables, name, status, words):
    driver_double.write(gpu(0), gpu(1))
    found = check(**variables).one(name)
    assert (found["status"], words in found["found"]) == (status, True), found


def test_b28_the_driver_shows_another_order_than_nvml(check, driver_double):
    driver_double.write(gpu(0, name="NVIDIA T4", speed=1), gpu(1, speed=5))
    checked = check(CUDA_DEVICE_ORDER="FASTEST_FIRST", CUDA_VISIBLE_DEVICES="0")
    assert checked.one("CUDA_DEVICE_ORDER")["status"] == "warn"
    assert "cuda:0 = physical 1" in checked.one("CUDA driver")["found"]
    assert checked.one("CUDA driver")["status"] == "warn"


def test_b60_mig_counts_stand_side_by_side(check, driver_double):
    driver_double.write(gpu(0), gpu(1, mig_mode=True, mig=[mig(0), mig(1), mig(2)]))
    found = check().one("CUDA driver")["found"]
    assert "shows a fresh process 1 device" in found
    assert "NVML lists 2 GPUs and 3 MIG devices" in found


def test_b64_memory_without_a_holder(check, driver_double):
    driver_double.write(gpu(0, memory_used_bytes=int(8.5 * 2**30)))
    found = check().one("memory")
    assert "8.5 GiB of GPU 0 are held" in found["found"]
    assert "empty_cache" not in json.dumps(found)


def test_b78_an_exclusive_gpu(check, driver_double):
    driver_double.write(gpu(0, compute_mode=3))
    assert check().one("GPU 0")["status"] == "warn"


def test_b92_a_hidden_gpu(check, driver_double):
    hidden = gpu(2, errors={"nvmlDeviceGetHandleByIndex": 4})
    driver_double.write(gpu(0), gpu(1), hidden, gpu(3))
    found = check().one("NVML")
    assert "lists 3 GPUs; 1 of 4 GPUs is hidden" in found["found"]


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        pytest.param({"nvmlInit": 18}, "updated while the old one", id="B105"),
        pytest.param({"nvmlInit": 999}, "container that lost its GPUs", id="B101"),
    ],
)
def test_a_driver_that_fails_is_said_and_the_rest_is_checked(check, driver_double, errors, words):
    driver_double.write(gpu(0), errors=errors)
    checked = check()
    assert checked.one("NVML")["status"] == "fail"
    assert words in checked.one("NVML")["found"]
    assert checked.one("CUDA_VISIBLE_DEVICES")


def test_b106_without_a_driver_it_still_answers(check):
    checked = check(LD_LIBRARY_PATH="/nowhere")
    assert checked.one("driver")["status"] == "warn"
    assert checked.one("CUDA driver")["found"] == "there is no libcuda.so.1 to ask"
    assert not any(check["status"] == "fail" for check in checked.checks)


def test_a_driver_that_does_not_start_is_a_failure(check, driver_double):
    driver_double.write(gpu(0), errors={"cuInit": 999})
    found = check().one("CUDA driver")
    assert found["status"] == "fail"
    assert "cuInit 999: unknown error" in found["found"]


@pytest.mark.parametrize(
    ("cells", "status"),
    [([FREEZE], "fail"), ([], "ok")],
)
def test_b47_in_a_forked_worker(driver_double, lease_directory, tmp_path, cells, status):
    driver_double.write(gpu(0))
    code = f"""
import json, os, sys, warnings
sys.path.insert(0, {os.path.dirname(__file__)!r})
warnings.simplefilter("ignore")
from support_shell import make_shell
with make_shell() as shell:
    shell.run_line_magic("load_ext", "jupyter_gpu")
    for cell in {cells!r}:
        shell.run_cell(cell, store_history=True)
    pid = os.fork()
    if pid == 0:
        checks = shell.run_line_magic("gpu", "check --json")["checks"]
        print(json.dumps([c for c in checks if c["name"] in ("fork", "CUDA driver")]), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""
    said = driver_double.run(
        os.sys.executable, "-c", code,
        JUPYTER_GPU_LEASE_DIR=str(lease_directory), IPYTHONDIR=str(tmp_path / "ipython"),
    )  # fmt: skip
    (found,) = json.loads(said.strip().splitlines()[-1])
    assert (found["name"], found["status"]) == ("fork", status)


@pytest.mark.parametrize("platform", ["darwin", "win32", "sandbox"])
def test_on_other_systems_it_says_what_cannot_be_known(eight_gpus, program, platform):
    code = (
        f"{ELSEWHERE}\n"
        "from jupyter_gpu.core.checks import checks_answer\n"
        "from jupyter_gpu.doctor import examine\n"
        "print(json.dumps([checks_answer(examine(os.environ)), '', '']))"
    )
    checked = Checked(*json.loads(program(code, arguments=(platform,)).read()))
    assert checked.one("CUDA_VISIBLE_DEVICES")["status"] == "ok"
    assert checked.one("lease directory")["status"] in ("warn", "fail")


def test_it_takes_less_than_a_second(shell):
    shell.run_line_magic("gpu", "check")
    began = time.perf_counter()
    shell.run_line_magic("gpu", "check")
    assert time.perf_counter() - began < 1
