"""What it costs to look: the command, the extension and ``%gpu``.

On this machine's own GPUs where it has any, else over doubles of the driver libraries that take as
long to answer as was measured on H200s. The command is compared with a bare Python that imports pynvml and reads the same values;
what happens inside a shell, with the smallest thing of its kind that IPython has itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machines
import pairs

STATUS, BARE, SMI = "jupyter-gpu status --json", "bare pynvml", "nvidia-smi"
_COMMAND = "import sys; from jupyter_gpu.cli import main; sys.exit(main())"
_BARE = """
import json, pynvml as n
n.nvmlInit()
rows = []
for index in range(n.nvmlDeviceGetCount()):
    gpu = n.nvmlDeviceGetHandleByIndex(index)
    memory = n.nvmlDeviceGetMemoryInfo(gpu, n.nvmlMemory_v2)
    rows.append({
        "index": index, "uuid": n.nvmlDeviceGetUUID(gpu), "name": n.nvmlDeviceGetName(gpu),
        "bus": n.nvmlDeviceGetPciInfo(gpu).busId, "total": memory.total, "used": memory.used,
        "utilization": n.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "temperature": n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU),
        "power": n.nvmlDeviceGetPowerUsage(gpu),
        "pids": [process.pid for process in n.nvmlDeviceGetComputeRunningProcesses(gpu)],
    })
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(),
    "cuda": n.nvmlSystemGetCudaDriverVersion_v2(), "devices": rows}))
n.nvmlShutdown()
"""
# A shell as a kernel has it: what ipykernel imports is there already.
_SHELL = """
import sys, time, ipykernel.kernelapp
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
settings = Config()
settings.HistoryManager.hist_file = ":memory:"
shell = InteractiveShell.instance(config=settings)
def clocked(magic, line):
    began = time.perf_counter()
    result = shell.run_line_magic(magic, line)
    shown = shell.display_formatter.format(result)[0] if result is not None else {}
    return (time.perf_counter() - began) * 1000, str(shown)
"""
_LOAD = _SHELL + "print(clocked('load_ext', sys.argv[1])[0])"
_WARM = (
    _SHELL
    + """
from jupyter_gpu.adapters.nvml import NVMLMachine
shell.run_line_magic("load_ext", "jupyter_gpu")
machine = NVMLMachine()
def read():
    began = time.perf_counter()
    machine.read()
    return (time.perf_counter() - began) * 1000
first, said = clocked("gpu", "")
assert "GPU" in said, said
print(first)
for _ in range(3):
    clocked("gpu", ""), clocked("gpu", "--json"), read()
for number in range(int(sys.argv[1])):
    row = [clocked("gpu", "")[0], read(), read(), clocked("gpu", "--json")[0]]
    print(*row)
"""
)


class Machine:
    """Runs fresh programs on one machine and clocks them."""

    def __init__(self, where: machines.Where, folder: Path) -> None:
        self.where = where
        self._environment = pairs.child_environment(
            **where.environment,
            JUPYTER_GPU_LEASE_DIR=str(folder / "leases"),
            IPYTHONDIR=str(folder / "ipython"),
        )

    def output(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def clock_ms(self, *command: str) -> float:
        began = time.perf_counter()
        self.output(*command)
        return (time.perf_counter() - began) * 1000

    def python_ms(self, code: str, *arguments: str) -> float:
        return self.clock_ms(sys.executable, "-c", code, *arguments)


def measure_cold(report: pairs.Report, machine: Machine, rounds: int) -> None:
    candidates = {
        STATUS: lambda: machine.python_ms(_COMMAND, "status", "--json"),
        BARE: lambda: machine.python_ms(_BARE),
        BARE + pairs.AGAIN: lambda: machine.python_ms(_BARE),
    }
    if shutil.which("nvidia-smi") and not machine.where.environment:
        candidates[SMI] = lambda: machine.clock_ms("nvidia-smi")
    samples = pairs.take_turns(candidates, rounds)
    report.compare("the command, cold", samples, STATUS, BARE, pairs.Goal("ratio", 1.6))
    if SMI in samples:
        report.alone("nvidia-smi, cold, for comparison", samples[SMI])


def measure_loading(report: pairs.Report, machine: Machine, rounds: int) -> None:
    """Clock ``%load_ext`` alone, in a fresh process each time."""

    def load(extension: str) -> float:
        return float(machine.output(sys.executable, "-c", _LOAD, extension))

    ours, theirs = "%load_ext jupyter_gpu", "%load_ext autoreload"
    candidates = {
        ours: lambda: load("jupyter_gpu"),
        theirs: lambda: load("autoreload"),
        theirs + pairs.AGAIN: lambda: load("autoreload"),
    }
    samples = pairs.take_turns(candidates, rounds)
    report.compare(
        "loading the extension", samples, ours, theirs, pairs.Goal("median", 10), digits=2
    )


def measure_magic(report: pairs.Report, machine: Machine, rounds: int) -> None:
    printed = machine.output(sys.executable, "-c", _WARM, str(rounds)).split("\n")
    rows = [tuple(map(float, line.split())) for line in printed[1:] if line]
    magic, read, again, as_json = (list(column) for column in zip(*rows, strict=True))
    samples = {"%gpu": magic, "NVML read alone": read, "NVML read alone" + pairs.AGAIN: again}
    goal = pairs.Goal("median", 15)
    report.compare("%gpu, warm", samples, "%gpu", "NVML read alone", goal, digits=2)
    report.alone("%gpu --json, warm", as_json, goal, digits=2)
    report.alone("%gpu, the first in a kernel", [float(printed[0])], digits=2)


def run(rounds: int, where: machines.Where | None = None) -> pairs.Report:
    folder = Path(tempfile.mkdtemp(prefix="jupyter-gpu-bench-"))
    try:
        machine = Machine(where or machines.find(folder), folder)
        report = pairs.Report("status", machine.where.words)
        print(f"on {machine.where.words}")
        measure_cold(report, machine, rounds)
        measure_loading(report, machine, rounds)
        measure_magic(report, machine, 5 * rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def main() -> int:
    parser = pairs.options(__doc__.partition("\n")[0], pairs=40)
    arguments = parser.parse_args()
    report = run(arguments.pairs)
    report.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
