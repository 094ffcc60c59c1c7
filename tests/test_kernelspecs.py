"""Kernelspecs on disk: installed, listed and removed, and nobody else's is touched."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from jupyter_gpu.core import kernelspec
from jupyter_gpu.core.errors import KernelspecError
from jupyter_gpu.core.logo import logo
from jupyter_gpu.faces.kernelspecs import (
    folder_of,
    install,
    installed,
    place_arguments,
    remove,
)

ROOT = Path(__file__).parent.parent


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The user's kernelspec folder, empty, of a Jupyter that has no other place of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("JUPYTER_PATH", raising=False)
    return tmp_path / "data" / "kernels"


def kernel_json(folder):
    return json.loads((folder / "kernel.json").read_text(encoding="utf-8"))


def make_kernelspec(kernels, name, spec, **files):
    folder = kernels / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    for file, content in files.items():
        (folder / file.replace("__", ".")).write_text(content)
    return folder


def r_kernelspec(kernels):
    argv = ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"]
    spec = {"argv": argv, "display_name": "R", "language": "R", "env": {"R_HOME": "/x"}}
    folder = make_kernelspec(kernels, "ir", spec, logo_svg__svg="<svg/>", kernel__js="// R")
    (folder / "data").mkdir()
    (folder / "data" / "table").write_text("1")
    start = folder / "start.sh"
    start.write_text("#!/bin/sh\n")
    start.chmod(0o755)
    return folder


def python_kernelspec(kernels, interpreter, name="mine"):
    argv = [str(interpreter), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return make_kernelspec(
        kernels, name, {"argv": argv, "display_name": "Mine", "language": "python"}
    )


@pytest.fixture
def bare_python(tmp_path):
    """The Python of an empty environment."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_pytorch_kernelspec_is_installed_for_the_user_and_listed(kernels):
    spec = install({"gpus": 4, "model": "H200"})
    assert (spec.name, spec.display_name, spec.gpus) == ("pytorch-4gpus", "PyTorch (4 GPUs)", 4)
    assert spec.provisioner == "gpu-provisioner"
    assert spec.wrapper
    assert spec.hidden_by is None
    assert spec.path == kernels / "pytorch-4gpus"
    options = {"gpus": 4, "model": "H200"}
    assert kernel_json(spec.path) == kernelspec.pytorch(options, executable=sys.executable)
    assert (spec.path / "logo-svg.svg").read_text(encoding="utf-8") == logo(4)
    assert spec in installed()


@pytest.mark.parametrize(
    ("gpus", "name", "title"),
    [
        ("1/4", "pytorch-quarter-gpu", "PyTorch (¼ GPU)"),
        ("mig:1g.18gb", "pytorch-mig-1g.18gb", "PyTorch (MIG 1g.18gb)"),
    ],
)
def test_a_part_of_a_gpu_is_installed_listed_and_removed_like_any_other(kernels, gpus, name, title):
    spec = install({"gpus": gpus})
    assert (spec.name, spec.display_name, spec.gpus) == (name, title, gpus)
    assert (spec.path / "logo-svg.svg").read_text(encoding="utf-8") == logo(gpus)
    assert spec in installed()
    assert KernelSpecManager().get_kernel_spec(name).display_name == title
    two = install({"gpus": 2}, source=name)
    assert (two.name, two.display_name) == ("pytorch-2gpus", "PyTorch (2 GPUs)")
    assert remove(name) == spec.path


def test_jupyter_finds_what_was_installed(kernels):
    install({"gpus": 3})
    assert "pytorch-3gpus" in KernelSpecManager().find_kernel_specs()


def test_others_can_read_what_is_installed(kernels, tmp_path):
    spec = install({"gpus": 4}, where=tmp_path / "prefix")
    for path in (spec.path, *spec.path.iterdir()):
        assert path.stat().st_mode & stat.S_IROTH


def test_a_prefix_holds_share_jupyter_kernels(kernels, tmp_path):
    spec = install({"gpus": 4}, where=tmp_path / "prefix")
    assert spec.path == tmp_path / "prefix" / "share" / "jupyter" / "kernels" / "pytorch-4gpus"
    assert spec.hidden_by is None
    assert not kernels.exists()


def test_sys_prefix_is_this_pythons_environment(kernels, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    spec = install({"gpus": 4}, where="sys-prefix")
    assert spec.path.parent == tmp_path / "environment" / "share" / "jupyter" / "kernels"


def test_a_kernelspec_that_jupyter_would_not_find_first_says_what_hides_it(
    kernels, tmp_path, monkeypatch
):
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "first"))
    first = make_kernelspec(tmp_path / "first" / "kernels", "pytorch-4gpus", kernelspec.pytorch({}))
    assert install({"gpus": 4}).hidden_by == first


def test_names_and_environment_are_the_persons_choice(kernels):
    spec = install({"gpus": 2}, name="Train", display_name="Training ½", env=("A=1", "B=x=y", "C="))
    assert spec.name == "train"
    assert spec.display_name == "Training ½"
    assert kernel_json(spec.path)["env"] == {"A": "1", "B": "x=y", "C": ""}
    assert "½" in (spec.path / "kernel.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("variable", ["A", "=1", ""])
def test_a_variable_without_a_name_or_value_is_refused(kernels, variable):
    with pytest.raises(KernelspecError, match="NAME=VALUE"):
        install({"gpus": 2}, env=(variable,))
    assert not kernels.exists()


def test_cuda_visible_devices_is_not_the_kernelspecs_to_set(kernels):
    with pytest.raises(KernelspecError, match="--devices"):
        install({"gpus": 2}, env=("CUDA_VISIBLE_DEVICES=1",))


def test_installing_again_replaces_ours(kernels):
    install({"gpus": 2, "model": "H200"}, name="mine")
    spec = install({"gpus": 2, "model": "A100"}, name="mine")
    config = kernel_json(spec.path)["metadata"]["kernel_provisioner"]["config"]
    assert config == {"gpus": 2, "model": "A100"}


def test_installing_over_somebody_elses_is_refused_and_changes_nothing(kernels):
    folder = r_kernelspec(kernels)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(KernelspecError, match="--name"):
            install({"gpus": 2}, name="IR")
    with pytest.raises(KernelspecError, match="--name"):
        install({"gpus": 2}, name="ir", source="ir")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_another_language_keeps_its_command_its_logos_and_its_files(kernels):
    original = r_kernelspec(kernels)
    before = kernel_json(original)
    spec = install({"gpus": 2}, source="IR", env=("B=2",))
    assert (spec.name, spec.display_name, spec.gpus) == ("ir-2gpus", "R (2 GPUs)", 2)
    assert not spec.wrapper
    built = kernel_json(spec.path)
    assert built["argv"] == before["argv"]
    assert built["env"] == {"R_HOME": "/x", "B": "2"}
    assert built["metadata"]["kernel_provisioner"]["config"] == {"gpus": 2}
    assert {path.name for path in spec.path.iterdir()} == {p.name for p in original.iterdir()}
    assert (spec.path / "logo_svg.svg").read_text() == "<svg/>"
    assert (spec.path / "data" / "table").read_text() == "1"
    assert os.access(spec.path / "start.sh", os.X_OK)
    assert kernel_json(original) == before


def test_a_read_only_source_can_be_copied(kernels):
    original = r_kernelspec(kernels)
    (original / "kernel.json").chmod(0o444)
    original.chmod(0o555)
    try:
        spec = install({"gpus": 2}, source="ir")
        remove(spec.name)
    finally:
        original.chmod(0o755)


def test_another_language_has_no_wrapper_to_lease_without_the_provisioner(kernels):
    r_kernelspec(kernels)
    with pytest.raises(KernelspecError, match="--no-provisioner"):
        install({"gpus": 2}, source="ir", provisioner=False)
    with pytest.raises(KernelspecError, match="--python cannot apply"):
        install({"gpus": 2}, source="ir", python=sys.executable)


def test_jupyters_own_python_gets_the_wrapper(kernels):
    spec = install({"gpus": 2}, source="python3")
    assert spec.name == "python3-2gpus"
    assert spec.wrapper
    argv = kernel_json(spec.path)["argv"]
    assert argv == [
        *(sys.executable, "-m", "jupyter_gpu.kernel", "--gpus=2", "-f", "{connection_file}")
    ]
    assert {"logo-64x64.png", "logo-svg.svg"} <= {path.name for path in spec.path.iterdir()}


def test_a_python_that_has_the_package_runs_the_wrapper(kernels, tmp_path):
    python_kernelspec(kernels, script(tmp_path / "has", "exit 0"))
    argv = kernel_json(install({"gpus": 2}, source="mine").path)["argv"]
    assert argv[:4] == [str(tmp_path / "has"), "-m", "jupyter_gpu.kernel", "--gpus=2"]


def test_a_python_that_lacks_the_package_keeps_its_command(kernels, bare_python):
    original = python_kernelspec(kernels, bare_python)
    spec = install({"gpus": 2}, source="mine")
    assert not spec.wrapper
    assert spec.provisioner == "gpu-provisioner"
    assert kernel_json(spec.path)["argv"] == kernel_json(original)["argv"]
    with pytest.raises(KernelspecError, match="-m pip install jupyter-gpu"):
        install({"gpus": 2}, source="mine", provisioner=False)


def test_a_python_that_is_gone_keeps_its_command(kernels, tmp_path):
    python_kernelspec(kernels, tmp_path / "gone")
    assert not install({"gpus": 2}, source="mine").wrapper


def test_another_python_is_asked_first_and_named_by_its_own_path(kernels, tmp_path):
    python = script(tmp_path / "python", f'exec {sys.executable} "$@"')
    assert kernel_json(install({"gpus": 2}, python=str(python)).path)["argv"][0] == str(python)


def test_the_path_of_another_python_is_absolute_and_links_stay_links(
    kernels, tmp_path, monkeypatch
):
    script(tmp_path / "has", "exit 0")
    (tmp_path / "link").symlink_to("has")
    monkeypatch.chdir(tmp_path)
    spec = install({"gpus": 2}, python="./link")
    assert kernel_json(spec.path)["argv"][0] == str(tmp_path / "link")


def test_another_python_can_run_the_kernel_of_an_existing_kernelspec(kernels, tmp_path):
    python_kernelspec(kernels, "/gone/python")
    has = script(tmp_path / "has", "exit 0")
    spec = install({"gpus": 2}, source="mine", python=str(has), provisioner=False)
    assert kernel_json(spec.path)["argv"][:3] == [str(has), "-m", "jupyter_gpu.kernel"]
    assert spec.provisioner is None
    assert spec.wrapper


def test_another_python_without_the_package_is_refused_with_the_command_that_helps(
    kernels, bare_python, monkeypatch
):
    monkeypatch.chdir(ROOT)  # the package lies in the current folder, which must not count
    with pytest.raises(KernelspecError) as refusal:
        install({"gpus": 2}, python=str(bare_python))
    assert "No module named 'ipykernel'" in str(refusal.value)
    assert f"{bare_python} -m pip install jupyter-gpu" in str(refusal.value)
    assert not kernels.exists()


def test_a_python_that_fails_without_a_word_is_refused_with_its_status(kernels, tmp_path):
    with pytest.raises(KernelspecError, match="status 3"):
        install({"gpus": 2}, python=str(script(tmp_path / "mute", "exit 3")))


def test_a_python_that_does_not_exist_is_refused(kernels, tmp_path):
    with pytest.raises(KernelspecError, match="not a program"):
        install({"gpus": 2}, python=str(tmp_path / "none"))


def test_a_place_that_cannot_be_written_is_one_sentence(kernels, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelspecError, match="cannot be written") as refusal:
        install({"gpus": 2}, where=tmp_path / "file")
    assert "--prefix" in str(refusal.value)


def test_an_unknown_source_is_refused_with_the_ones_there_are(kernels):
    r_kernelspec(kernels)
    with pytest.raises(KernelspecError, match=r"no kernelspec 'julia'.* ir"):
        install({"gpus": 2}, source="julia")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"argv": []}'])
def test_a_source_that_cannot_be_read_is_refused(kernels, text):
    (make_kernelspec(kernels, "broken", {}) / "kernel.json").write_text(text)
    with pytest.raises(KernelspecError, match="broken"):
        install({"gpus": 2}, source="broken")
    assert "broken" not in {spec.name for spec in installed()}


def test_one_of_ours_is_removed(kernels):
    spec = install({"gpus": 4})
    assert remove("PyTorch-4gpus") == spec.path
    assert not spec.path.exists()
    assert spec not in installed()


def test_one_that_only_has_the_wrapper_is_ours_as_well(kernels):
    spec = install({"gpus": 4}, provisioner=False)
    assert "kernel_provisioner" not in kernel_json(spec.path)["metadata"]
    assert spec in installed()
    assert remove(spec.name) == spec.path


def test_a_kernelspec_can_be_installed_again_where_it_is(kernels, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    places = (("user", ()), ("sys-prefix", ("--sys-prefix",)))
    for where, arguments in places:
        assert place_arguments(install({"gpus": 4}, where=where)) == arguments
    there = install({"gpus": 4}, where=tmp_path / "prefix")
    assert place_arguments(there) == ("--prefix", str(tmp_path / "prefix"))
    assert place_arguments(dataclasses.replace(there, path=tmp_path / "x" / "y")) is None


def test_the_folder_of_a_name_is_the_one_that_jupyter_uses(kernels):
    spec = install({"gpus": 4})
    assert folder_of("PyTorch-4gpus") == spec.path
    remove(spec.name)
    assert folder_of(spec.name) is None


def test_somebody_elses_is_not_removed(kernels):
    folder = r_kernelspec(kernels)
    with pytest.raises(KernelspecError, match="jupyter kernelspec remove ir"):
        remove("ir")
    assert (folder / "kernel.json").exists()


def test_an_unknown_one_cannot_be_removed(kernels):
    with pytest.raises(KernelspecError, match="no kernelspec 'nothing'"):
        remove("nothing")


def test_the_list_holds_only_ours_even_if_the_server_lacks_their_provisioner(kernels):
    r_kernelspec(kernels)
    ours = make_kernelspec(
        kernels,
        "slurm",
        {
            "argv": ["R"],
            "display_name": "R on two",
            "language": "R",
            "metadata": {
                "kernel_provisioner": {
                    "provisioner_name": "slurm-gpu-provisioner",
                    "config": {"gpus": 2},
                }
            },
        },
    )
    found = [spec for spec in installed() if spec.path.parent == kernels]
    assert [(spec.name, spec.display_name, spec.gpus) for spec in found] == [
        ("slurm", "R on two", 2)
    ]
    assert found[0].provisioner == "slurm-gpu-provisioner"
    assert found[0].path == ours


def test_the_wheel_brings_the_kernelspecs_their_logos_and_the_types(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = set(zipfile.ZipFile(wheel).namelist())
    assert "jupyter_gpu/py.typed" in files
    for name in ("pytorch-cpu", "pytorch-quarter-gpu", "pytorch-1gpu", "pytorch-2gpus"):
        for file in ("kernel.json", "logo-svg.svg", "logo-32x32.png", "logo-64x64.png"):
            suffix = f".data/data/share/jupyter/kernels/{name}/{file}"
            assert any(path.endswith(suffix) for path in files), suffix
