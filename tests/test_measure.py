"""``%%gpu`` in a real shell over a simulated machine, and in real kernels."""

import contextlib
import io
import json
import os
import re
import sys
from types import SimpleNamespace

import nbformat
import pytest
from doubles import gpu
from doubles.fixtures import driver_double, driver_libraries
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from support_shell import make_shell

from jupyter_gpu.core.measurement import Measurement

__all__ = ["driver_double", "driver_libraries"]

GIB = 1 << 30
SECONDS = 60


@pytest.fixture
def shell(simulate):
    simulate("2xH200")
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield shell


def cell(shell, line, code):
    """Run a cell with the magic on top; returns its result and all that it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        result = shell.run_cell(f"%%gpu {line}\n{code}", store_history=True)
    return result, out.getvalue() + err.getvalue()


def test_the_value_and_then_the_measurement_are_shown(shell):
    result, said = cell(shell, "", "x = 20\nx + 1")
    assert result.success
    assert shell.user_ns["_"] == 21
    assert said.index("Out[1]: 21") < said.index("The cell took")
    for words in ("cuda:0 = physical 0", "cuda:1 = physical 1", "simulated machine"):
        assert words in said


def test_only_visible_devices_are_told_even_if_the_cell_chose_them(shell, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    _, said = cell(shell, "-o kept", 'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "1"')
    (device,) = shell.user_ns["kept"].devices
    assert (device.ordinal, device.index, device.memory_peak_bytes) == (0, 1, 0)
    assert "cuda:0 = physical 1" in said


def test_a_name_keeps_the_result_and_shows_it_again(shell):
    _, said = cell(shell, "-o kept", "pass")
    kept = shell.user_ns["kept"]
    assert isinstance(kept, Measurement)
    assert repr(kept) in said
    assert kept.as_json()["schema"] == 1
    assert kept._repr_html_().count("<svg") == 1


def test_json_is_the_cells_value_or_goes_to_the_name(shell):
    result, said = cell(shell, "--json", "pass")
    assert result.result["schema"] == 1
    assert json.loads(json.dumps(result.result)) == result.result
    assert result.result["machine"] == {"source": "simulated", "problem": None}
    assert "The cell took" not in said
    result, said = cell(shell, "--json -o kept", "pass")
    assert (result.result, said) == (None, "")
    assert shell.user_ns["kept"]["ended"] == "done"


def test_a_cell_that_fails_is_measured_and_fails(shell):
    result, said = cell(shell, "-o kept", "1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert said.index("The cell failed after") < said.index("division by zero")
    assert said.count("division by zero") == 1
    assert shell.user_ns["kept"].ended == "failed"
    _, said = cell(shell, "--json", "1 / 0")
    assert "'ended': 'failed'" in said


def test_an_error_of_ours_in_the_cell_is_the_cells(shell):
    code = "from jupyter_gpu.core.errors import UsageError\nraise UsageError('mine')"
    result, said = cell(shell, "", code)
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert "Traceback" in said
    _, said = cell(shell, "", "%gpu staus")
    assert "The cell failed after" in said
    assert "Did you mean 'status'?" in said


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("--josn", "x", "Did you mean '--json'?"),
        ("-x", "x", "'-x' is not understood."),
        ("x", "x", "The cell's code stands below the line."),
        ("-o", "x", "-o: expected one argument"),
        ("-o 1x", "x", "-o 1x: this is not the name of a variable."),
        ("-o class", "x", "-o class: this is not"),
        ("'", "x", "%%gpu: No closing quotation"),
        ("", "import asyncio\nawait asyncio.sleep(0)", "await at its top level"),
    ],
)
def test_wrong_use_is_refused_before_the_cell_runs(shell, line, code, words):
    result, said = cell(shell, line, f"ran = 1\n{code}")
    assert not result.success
    assert said.startswith("UsageError: ")
    assert words in said
    assert "Traceback" not in said
    assert "ran" not in shell.user_ns


def test_help_shows_an_example_and_what_happens_to_torchs_peak(shell):
    result, said = cell(shell, "-h", "ran = 1")
    assert result.success
    assert said.startswith("usage: %%gpu [-h] [-o NAME] [--json]")
    assert "max_memory_allocated" in said
    assert "Example:\n  %%gpu -o step" in said
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "ran" not in shell.user_ns


def test_wrong_syntax_is_shown_once_and_fails_the_cell(shell):
    result, said = cell(shell, "", "x = = 1")
    assert isinstance(result.error_before_exec, SyntaxError)
    assert said.count("SyntaxError") == 1
    assert "line 2" in said
    assert "The cell" not in said
    with pytest.raises(SyntaxError):
        shell.run_cell_magic("gpu", "", "x = = 1")


def test_readings_come_from_the_description_while_the_cell_runs(shell, simulate):
    def describe(**changes):
        one = {"name": "NVIDIA H200", "memory_total_bytes": 140 * GIB, "power_watts": 300}
        simulate({"gpus": [{**one, "memory_used_bytes": 2 * GIB, **changes}]})

    describe()
    shell.user_ns["describe"] = describe
    _, said = cell(
        shell, "-o kept", f"describe(memory_used_bytes={7 * GIB}, utilization_percent=80)"
    )
    (device,) = shell.user_ns["kept"].devices
    assert (device.memory_before_bytes, device.memory_after_bytes) == (2 * GIB, 7 * GIB)
    assert device.memory_added_bytes == 5 * GIB
    assert device.utilization_peak_percent == 80
    assert device.energy_estimated
    assert device.energy_joules == pytest.approx(300 * shell.user_ns["kept"].seconds)
    assert "The energy is estimated" in said


def test_a_machine_that_breaks_in_the_cell_leaves_the_time_and_says_why(shell, simulate):
    shell.user_ns["simulate"] = simulate
    code = "import os; os.environ['JUPYTER_GPU_SIMULATE'] = '3xNOTHING'"
    result, said = cell(shell, "", code)
    assert result.success
    assert "The cell took" in said
    assert "NOTHING" in said


def test_no_gpu_is_visible(shell, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    result, said = cell(shell, "", "1")
    assert result.success
    assert "No GPU is visible in this kernel, so only the time was measured." in said


def test_what_we_cannot_tell_does_not_fail_the_cell(shell, monkeypatch):
    def break_display(obj):
        raise RuntimeError("no display")

    monkeypatch.setattr("IPython.display.display", break_display)
    result, said = cell(shell, "", "x = 3")
    assert (result.success, shell.user_ns["x"]) == (True, 3)
    assert "%%gpu could not tell what the cell took: no display" in said
    assert "Traceback" not in said


def test_torch_that_is_asleep_is_not_touched(shell, monkeypatch):
    asleep = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", asleep)
    result, said = cell(shell, "", "1")
    assert result.success
    assert "torch" not in said


def test_run_all_stops_at_a_cell_that_fails(simulate):
    simulate("1xH200")
    sources = ("%load_ext jupyter_gpu", "%%gpu\nprint('before')\n1 / 0", "never = 1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in sources])
    with pytest.raises(CellExecutionError, match="division by zero"):
        NotebookClient(notebook, kernel_name="python3", timeout=SECONDS).execute()
    outputs = notebook.cells[1].outputs
    assert [one.output_type for one in outputs[:3]] == ["stream", "display_data", "error"]
    assert [one.output_type for one in outputs].count("error") == 1
    assert set(outputs[1].data) == {"text/plain", "text/html"}
    assert "<svg" in outputs[1].data["text/html"]
    assert outputs[2].ename == "ZeroDivisionError"
    assert "run_cell_magic" not in "".join(outputs[2].traceback)
    assert notebook.cells[2].execution_count is None


class Kernel:
    """A kernel over the driver doubles, whose cells are run one by one."""

    def __init__(self, double):
        self.manager, self.client = start_new_kernel(
            kernel_name="python3", env=double.environment(JUPYTER_GPU_SIMULATE="")
        )
        self.outputs = []

    def run(self, code, on_output=lambda message: None):
        """Run a cell; returns its reply. ``outputs`` are its messages."""
        self.outputs = []

        def gather(message):
            self.outputs.append(message)
            on_output(message)

        reply = self.client.execute_interactive(
            code, output_hook=gather, timeout=SECONDS, stop_on_error=False
        )
        return reply["content"]

    def shown(self):
        """The texts that the last cell displayed."""
        return [
            one["content"]["data"]["text/plain"]
            for one in self.outputs
            if one["msg_type"] == "display_data"
        ]

    def json(self, expression):
        reply = self.run(f"import json; print(json.dumps({expression}))")
        assert reply["status"] == "ok", reply
        (said,) = [one["content"]["text"] for one in self.outputs if one["msg_type"] == "stream"]
        return json.loads(said)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.client.context.term()


@pytest.fixture
def kernel(driver_double):
    driver_double.write(gpu(0, energy_joules=100), gpu(1, energy_joules=200.5))
    kernel = Kernel(driver_double)
    assert kernel.run("%load_ext jupyter_gpu")["status"] == "ok"
    yield kernel
    kernel.close()


SETUP = """
import ctypes, json, os, sys, types
from pathlib import Path

def put(**changes):
    path = Path(os.environ["JUPYTER_GPU_DOUBLE"])
    machine = json.loads(path.read_text())
    machine["gpus"][1].update(changes)
    path.with_suffix(".next").write_text(json.dumps(machine))
    path.with_suffix(".next").replace(path)

# A stand-in for torch's CUDA build: it initialises the driver, and counts what it allocates.
class Cuda:
    held = peak = 0
    awake = False
    def is_initialized(self): return self.awake
    def memory_allocated(self, ordinal): return self.held
    def max_memory_allocated(self, ordinal): return self.peak
    def reset_peak_memory_stats(self, ordinal): self.peak = self.held
    def allocate(self, size):
        if not self.awake:
            assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
            self.awake = True
        self.held += size
        self.peak = max(self.peak, self.held)
torch = sys.modules["torch"] = types.SimpleNamespace(cuda=Cuda(), __version__="2.9.0")
"""


def test_over_a_driver_the_counter_gives_the_energy_and_torch_its_peak(kernel):
    assert kernel.run(SETUP)["status"] == "ok"
    code = f"""%%gpu -o kept
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
torch.cuda.allocate({9 * GIB})
torch.cuda.allocate({-4 * GIB})
put(memory_used_bytes={12 * GIB}, utilization_percent=66, energy_joules=251.25)
import time; time.sleep(1.5)  # long enough for the counter
"""
    reply = kernel.run(code)
    assert reply["status"] == "ok", reply
    (said,) = kernel.shown()
    assert re.search("and ~?(49|50|51) J on 1 device", said)
    assert "cuda:0 = physical 1  12.0 of 140.4 GiB  +12.0 GiB" in said
    assert "cuda:0  9.0 GiB  +5.0 GiB  5.0 GiB" in said
    data = kernel.json("kept.as_json()")
    (device,) = data["devices"]
    assert device["uuid"] == gpu(1)["uuid"]
    assert 48.5 < device["energy_joules"] <= 50.75  # less the time around the cell
    assert device["utilization_peak_percent"] == 66
    assert data["machine"] == {"source": "nvml", "problem": None}
    # The second cell's peak counts from what is held, and only what is in force is read.
    kernel.run(f"%%gpu -o kept --json\ntorch.cuda.allocate({2 * GIB})")
    (device,) = kernel.json("kept")["devices"]
    assert device["torch"] == {
        "allocated_before_bytes": 5 * GIB,
        "allocated_peak_bytes": 7 * GIB,
        "allocated_after_bytes": 7 * GIB,
        "allocated_added_bytes": 2 * GIB,
    }
    assert device["energy_estimated"]


def test_an_interrupt_ends_the_cell_with_its_measurement_and_the_kernel_lives(kernel):
    def interrupt(message):
        if message["msg_type"] == "stream":
            kernel.manager.interrupt_kernel()

    reply = kernel.run("%%gpu\nprint('runs', flush=True)\nwhile True: pass", interrupt)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    (said,) = kernel.shown()
    assert said.startswith("The cell was interrupted after")
    assert [one["msg_type"] for one in kernel.outputs].count("error") == 1
    assert kernel.json("1 + 1") == 2
    assert (
        kernel.json("[t.name for t in __import__('threading').enumerate()]").count(
            "jupyter-gpu-sampler"
        )
        == 0
    )


def test_without_a_driver_the_time_is_told_and_why_no_more(kernel):
    os.unlink(kernel_path := kernel.json("__import__('os').environ['JUPYTER_GPU_DOUBLE']"))
    assert not os.path.exists(kernel_path)
    assert kernel.run("%%gpu\nx = 1")["status"] == "ok"
    (said,) = kernel.shown()
    assert said.startswith("The cell took")
    assert "Note: The NVIDIA driver is installed but not loaded" in said
