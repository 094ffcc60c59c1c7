import sys

import pytest

from jupyter_gpu.adapters.installed import installed_libraries

TORCH = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '%s'
debug = False
cuda: Optional[str] = %s
git_version = 'cf30153'
hip: Optional[str] = %s
"""
TENSORFLOW = """import collections
build_info = collections.OrderedDict([('cpu_compiler', 'clang'), ('cuda_compute_capabilities',
['sm_60', 'compute_90']), ('cuda_version', '%s'), ('is_cuda_build', %s), ('is_rocm_build', False)])
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that is all this Python has installed; ``put(name, version, {file: text})``."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def put(name, version="1.0", files=None):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for path, text in (files or {}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    return put


def one():
    (library,) = installed_libraries()
    return library


def test_where_nothing_is_installed_there_is_nothing(site):
    assert installed_libraries() == ()


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "built"),
    [
        ("2.13.0+cu130", "'13.0'", "None", ("13.0", None)),
        ("2.13.0+cpu", "None", "None", (None, "the CPU only")),
        ("2.13.0+rocm7.0", "None", "'7.0.1'", (None, "ROCm")),
    ],
)
def test_torch_says_in_a_file_what_it_was_built_for(site, version, cuda, hip, built):
    text = TORCH % (version, cuda, hip)
    site("torch", version.partition("+")[0], {"torch/version.py": text})
    library = one()
    assert library.version == version
    assert (library.cuda, library.other) == built


def test_a_torch_whose_file_is_elsewhere_is_of_unknown_build(site):
    site("torch", "2.9.0")
    assert (one().version, one().cuda, one().other) == ("2.9.0", None, None)


@pytest.mark.parametrize(
    ("name", "cuda", "is_cuda", "built"),
    [
        ("tensorflow", "12.5.1", True, ("12.5.1", None)),
        ("tensorflow", "12.5.1", False, (None, "the CPU only")),
        ("tensorflow-cpu", "", False, (None, "the CPU only")),
    ],
)
def test_tensorflow_does_too(site, name, cuda, is_cuda, built):
    path = "tensorflow/python/platform/build_info.py"
    site(name, "2.19.0", {path: TENSORFLOW % (cuda, is_cuda)})
    assert one().distribution == "tensorflow"
    assert (one().cuda, one().other) == built


@pytest.mark.parametrize(
    ("plugin", "built"), [("jax-cuda12-plugin", ("12", None)), (None, (None, "the CPU only"))]
)
def test_jax_has_cuda_in_a_plugin(site, plugin, built):
    site("jax", "0.9.0")
    if plugin:
        site(plugin, "0.9.0")
    assert (one().cuda, one().other) == built


def test_cupy_has_it_in_its_name(site):
    site("cupy-cuda12x", "13.4.0")
    assert (one().name, one().cuda) == ("CuPy", "12")


def test_packages_that_stand_in_the_way_are_found_too(site):
    site("pynvml", "13.0.1")
    site("vllm", "0.11.0")
    assert [library.distribution for library in installed_libraries()] == ["pynvml", "vllm"]


def test_what_jax_has_opened_is_counted_and_nothing_is_asked_before(site, monkeypatch):
    site("jax", "0.9.0")

    class Client:
        def local_device_count(self):
            return 2

    class Broken:
        pass

    class Bridge:
        _backends = {}  # noqa: RUF012

    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", Bridge)
    for backends, count in (
        ({}, None),
        ({"cuda": Client()}, 2),
        ({"cpu": 1}, 0),
        ({"cuda": Broken()}, None),
    ):
        Bridge._backends = backends
        assert one().sees == count


def test_nothing_is_imported(driver_free_python):
    assert driver_free_python == "[]\n"


@pytest.fixture
def driver_free_python():
    import subprocess

    code = (
        "import sys; from jupyter_gpu.adapters.installed import installed_libraries as found\n"
        "found(); print([m for m in ('torch', 'jax', 'tensorflow', 'pynvml') if m in sys.modules])"
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_a_broken_package_breaks_nothing(site, tmp_path):
    (tmp_path / "torch-.dist-info").mkdir()
    (tmp_path / "jax-0.9.dist-info").mkdir()
    (tmp_path / "torch-2.dist-info").mkdir()
    installed_libraries()
