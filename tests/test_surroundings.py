import os
import sys

import pytest

from jupyter_gpu.adapters import surroundings

WAIT = "import sys; print('ready'); sys.stdin.read()"


def test_a_container_is_told_by_the_marks_that_it_leaves(tmp_path):
    assert not surroundings.in_container({}, root=str(tmp_path))
    assert surroundings.in_container({"container": "podman"}, root=str(tmp_path))
    (tmp_path / ".dockerenv").touch()
    assert surroundings.in_container({}, root=str(tmp_path))


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Jan 5", "580.159.04"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build",
            "570.86.10",
        ),
        ("nothing of the kind", None),
    ],
)
def test_the_kernels_module_is_read_from_proc(tmp_path, line, version):
    (tmp_path / "version").write_text(f"{line}\nGCC version: 12.2.0\n")
    assert surroundings.kernel_module(str(tmp_path / "version")) == version


def test_without_a_module_there_is_none(tmp_path):
    assert surroundings.kernel_module(str(tmp_path / "none")) is None


class TestMPS:
    """The daemon is looked for, and never spoken to."""

    @pytest.fixture
    def pipes(self, tmp_path):
        return tmp_path

    def find(self, pipes):
        return surroundings.find_mps({"CUDA_MPS_PIPE_DIRECTORY": str(pipes)})

    def test_without_a_pipe_there_is_none(self, pipes):
        found = self.find(pipes)
        assert (found.directory, found.daemon) == (str(pipes), False)

    def test_a_living_daemon_runs(self, pipes, program):
        daemon = program(WAIT, arguments=("nvidia-cuda-mps-control", "-d"))
        daemon.read()
        (pipes / "control").touch()
        (pipes / "nvidia-cuda-mps-control.pid").write_text(f"{daemon.pid}\n")
        assert self.find(pipes).daemon is True

    def test_a_pid_that_is_another_programs_is_no_daemon(self, pipes, monkeypatch):
        monkeypatch.setattr(surroundings, "has_foreign_pids", lambda: False)
        (pipes / "control").touch()
        (pipes / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
        assert self.find(pipes).daemon is False
        monkeypatch.setattr(surroundings, "has_foreign_pids", lambda: True)
        assert self.find(pipes).daemon is None

    @pytest.mark.parametrize("text", ["", "many", None])
    def test_a_pipe_without_a_pid_leaves_it_unknown(self, pipes, text):
        (pipes / "control").touch()
        if text is not None:
            (pipes / "nvidia-cuda-mps-control.pid").write_text(text)
        assert self.find(pipes).daemon is None

    def test_nvidias_own_folder_is_the_default(self):
        assert surroundings.find_mps({}).directory == "/tmp/nvidia-mps"


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces are Linux's")
def test_pids_are_foreign_outside_the_first_namespace():
    first = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    assert surroundings.has_foreign_pids() == (not first)
