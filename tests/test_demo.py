"""The demonstration: what a person sees, on a machine with GPUs and on one without."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from doubles.machine import gpu
from kernels import KERNELSPECS, leases

from jupyter_gpu import demo

SECONDS = 60


@pytest.fixture(autouse=True)
def _our_kernelspecs(lease_directory, monkeypatch):
    share = lease_directory.parent / "share"
    shutil.copytree(KERNELSPECS, share / "kernels")
    monkeypatch.setenv("JUPYTER_PATH", str(share))


def run(**environ):
    """Run the demonstration as a person does; returns its status, its lines and its complaints."""
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpu.demo"],
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
        text=True,
        timeout=SECONDS,
        cwd="/",
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def launched_with(lines):
    """The values of CUDA_VISIBLE_DEVICES that the kernels' ``%gpu`` shows, in order."""
    return re.findall(r'launched with "([^"]*)"', "\n".join(lines))


def test_without_a_driver_it_shows_everything_on_the_simulated_machine(lease_directory):
    status, lines, complaints = run()
    assert status == 0, complaints
    assert complaints == ""
    assert (
        lines[0] == "Simulated machine, 4 × NVIDIA H200: there is no NVIDIA driver here."
    )
    assert 'Two notebooks pick "PyTorch (2 GPUs)", as a person does in JupyterLab.' in lines
    assert lines.count("In [1]: %gpu") == 3
    assert launched_with(lines) == ["0,1", "2,3", "0,1"]
    assert "No 2 GPUs are free (4 on this machine)." in lines
    refusal = lines[lines.index("third.ipynb picks it too, and is refused:") :]
    assert any(re.match(r"  0, 1  .*/first\.ipynb  since", line) for line in refusal)
    assert any(re.match(r"  2, 3  .*/second\.ipynb  since", line) for line in refusal)
    assert "- Two kernels had GPUs of their own: 0, 1 and 2, 3." in lines
    assert "- All kernels have ended, and no lease is left." in lines
    assert "  pip install jupyter-gpu" in lines
    assert '  jupyter lab        and pick "PyTorch (2 GPUs)"' in lines
    assert [line for line in lines if len(line) > 80] == []
    assert not lease_directory.exists()


def test_two_or_three_devices_are_for_one_gpu_a_kernel(monkeypatch, tmp_path):
    for description in ("2xL4", "3xL4"):
        monkeypatch.setenv("JUPYTER_GPU_SIMULATE", description)
        stage = demo._find_stage(os.environ, tmp_path)
        assert stage.machine.startswith("Simulated machine, ")
        assert stage.machine.endswith(" × NVIDIA L4: JUPYTER_GPU_SIMULATE is set.")
        assert (stage.kernelspec, stage.each) == ("pytorch-1gpu", 1)
        assert [device.index for device in stage.devices] == [0, 1]
        assert stage.options.get("devices") == (None if description == "2xL4" else [0, 1])


@pytest.fixture
def real(driver_double, monkeypatch):
    """A machine with an NVIDIA driver, or as good as one."""

    def put(count):
        driver_double.write(*(gpu(index) for index in range(count)))
        for name, value in driver_double.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return put


def test_on_a_machine_with_gpus_it_leases_them_in_the_machines_own_place(real, lease_directory):
    real(8)
    status, lines, complaints = run()
    assert status == 0, complaints
    assert lines[0] == "This machine has 8 × NVIDIA H200."
    assert launched_with(lines) == ["0,1", "2,3", "0,1"]
    # A third kernel could have had 4 to 7, so all three are kept to the first four.
    assert "No 2 GPUs are free (2 GPUs out of devices 0, 1, 2, 3; 8 on this machine)." in lines
    assert lease_directory.exists()
    assert leases() == ()


def test_devices_that_somebody_has_are_left_alone(real):
    real(3)
    holder = "import jupyter_gpu, sys; l = jupyter_gpu.acquire(1); print(l.id); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", holder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        held = child.stdout.readline().strip()
        status, lines, complaints = run()
        assert [lease.record.id for lease in leases()] == [held]
        child.stdin.close()
    assert status == 0, complaints
    assert launched_with(lines) == ["1", "2", "1"]


FIND = """
import os, sys
from pathlib import Path
import jupyter_gpu
from jupyter_gpu import demo
held = jupyter_gpu.acquire(int(sys.argv[1]))
print(demo._find_stage(os.environ, Path(sys.argv[2])).machine)
"""


@pytest.mark.parametrize(
    ("count", "held", "why"),
    [
        (1, 0, "this machine has fewer than two GPUs"),
        (2, 1, "fewer than two GPUs are free"),
    ],
)
def test_with_too_few_gpus_it_takes_the_simulated_machine_and_says_why(
    real, program, tmp_path, count, held, why
):
    real(count)
    machine = program(FIND, arguments=(held, tmp_path)).read()
    assert machine == f"Simulated machine, 4 × NVIDIA H200: {why}."


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"JUPYTER_GPU_SIMULATE": "1xT4"}, "1xT4 has fewer than two free"),
        ({"JUPYTER_GPU_SIMULATE": "many"}, "neither a machine such as"),
    ],
)
def test_what_hinders_it_is_one_sentence_and_status_1(environ, sentence):
    status, _, complaints = run(**environ)
    assert status == 1
    assert complaints.startswith("The demonstration stopped: ")
    assert sentence in complaints
    assert "Traceback" not in complaints


def test_a_kernelspec_that_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setattr(demo, "_CHOICES", (("pytorch-lost", 2),))
    assert demo.main([]) == 1
    assert "The kernelspec 'pytorch-lost' is not installed here" in capsys.readouterr().err


def test_a_kernel_that_has_what_it_should_not_is_told_and_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(demo, "_WHAT_IT_HAS", "print('{\"leased\": [0, 1], \"seen\": [0, 2]}')")
    assert demo.main([]) == 1
    assert "first.ipynb sees [0, 2], leased [0, 1]." in capsys.readouterr().err


def test_a_reader_who_leaves_ends_it_and_its_kernels():
    words = [sys.executable, "-m", "jupyter_gpu.demo"]
    environ = os.environ | {"JUPYTER_GPU_SIMULATE": "4xH200"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd="/"
    ) as process:
        assert process.stdout.readline().startswith("Simulated machine")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=SECONDS) == 1


def test_it_takes_no_arguments(capsys):
    with pytest.raises(SystemExit) as ended:
        demo.main(["--fast"])
    assert ended.value.code == 2


def test_long_lines_are_wrapped_below_their_beginning():
    words = "  0, 1  alice  /" + "x" * 30 + "  " + "word " * 20
    lines = list(demo._wrapped(words))
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert list(demo._wrapped("short\n\nshort")) == ["short", "", "short"]
