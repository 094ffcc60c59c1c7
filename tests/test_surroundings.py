import os
import sys

import pytest

from jupyter_gpu.adapters import surroundings


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


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces are Linux's")
def test_pids_are_foreign_outside_the_first_namespace():
    first = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    assert surroundings.has_foreign_pids() == (not first)
