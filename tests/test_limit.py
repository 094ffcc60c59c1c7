"""``%gpu limit`` in a real shell: over the double of a driver, and on a simulated machine."""

import os

import pytest
from doubles import gpu
from support_frozen import BEGIN
from support_shell import make_shell

from jupyter_gpu.core.errors import GPUError

CAPS = """
kept = {}
def cap(fraction, ordinal): kept[ordinal] = fraction
def told(ordinal): return kept.get(ordinal, 1.0)
caps = dict(set_per_process_memory_fraction=cap, get_per_process_memory_fraction=told)
"""
NO_TORCH = """
import importlib.metadata
real = importlib.metadata.version
def version(name):
    if name == "torch" and VERSION is None or name == "jax" and JAX is None:
        raise importlib.metadata.PackageNotFoundError(name)
    return VERSION if name == "torch" else JAX if name == "jax" else real(name)
importlib.metadata.version = version
"""


def answers(double, code, **variables):
    double.write(gpu(0), gpu(1))
    return double.python(f"{BEGIN}{CAPS}\n{code}\nend()", **variables).splitlines()


def test_a_torch_that_has_begun_is_capped_on_every_visible_device(driver_double):
    code = """
torch_standin(**caps)
freeze()
print(flat(gpu("limit")))
print(flat(gpu("limit 50%")))
print(kept)
print([one["fraction"] for one in gpu("limit --json")["caps"]])
print(flat(gpu("limit off")), kept)
print(sorted(name for name in os.environ if "ALLOC_CONF" in name))
"""
    before, text, kept, told, off, environ = answers(driver_double, code)
    assert before.startswith("torch has no cap here")
    assert text.startswith(
        "torch's cache is capped now cuda:0 = physical 0 70.2 of 140.4 GiB (50 %)"
    )
    assert "torch's cache only" in text
    assert kept == "{0: 0.5, 1: 0.5}"
    assert told == "[0.5, 0.5]"
    assert off == "torch's cap is taken away {0: 1.0, 1: 1.0}"
    assert environ == "[]"


def test_a_torch_that_is_imported_is_capped_as_soon_as_it_initialises_cuda(driver_double):
    code = """
queue = []
caps |= dict(_queued_calls=queue, _lazy_call=lambda call: queue.append((call, [])))
torch_standin(initialised=False, **caps)
print(flat(gpu("limit 20GiB")))
print(gpu("limit --json")["torch"], gpu("limit --json")["caps"][0]["fraction"], kept)
queue[0][0]()
print(kept)
print(flat(gpu("limit off")), queue)
"""
    text, waiting, kept, off = answers(driver_double, code)
    assert text.startswith("torch's cache will be capped when torch initialises CUDA")
    assert "told directly" in text
    assert waiting == "later 0.142448 {}"
    assert kept == "{0: 0.142448, 1: 0.142448}"
    assert off == "torch's cap is taken away []"


@pytest.mark.parametrize(
    ("version", "jax", "words", "environ"),
    [
        (
            "2.13.0",
            None,
            "torch's cache will be capped when torch is imported cuda:0 = physical 0 70.2",
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,per_process_memory_fraction:0.5"},
        ),
        (
            "2.9.1",
            "0.11.2",
            "No cap is set on torch yet. Once CUDA is initialised, run torch.cuda.set_per_process",
            {
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
            },
        ),
        (
            None,
            "0.11.2",
            "torch is not installed in this kernel's Python JAX has not begun",
            {
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
            },
        ),
    ],
)
def test_before_anything_is_imported_it_is_the_environment(
    driver_double, version, jax, words, environ
):
    code = f"""
VERSION, JAX = {version!r}, {jax!r}
{NO_TORCH}
print(flat(gpu("limit 0.5")))
names = sorted(name for name in os.environ if "ALLOC_CONF" in name or "MEM_FRACTION" in name)
print({{name: os.environ[name] for name in names}})
gpu("limit off")
print([name for name in names if "0.5" in os.environ.get(name, "")])
"""
    text, found, after = answers(
        driver_double, code, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"
    )
    assert text.startswith(words)
    assert eval(found) == environ
    assert after == "[]"


@pytest.mark.parametrize("imported", [True, False])
def test_a_torch_without_cuda_says_so_instead_of_promising_a_cap(driver_double, imported):
    code = f"""
VERSION, JAX = "2.13.0+cpu", None
{NO_TORCH}
if {imported}:
    torch_standin(initialised=False, version="2.13.0", **caps)
    standin("torch.cuda")
    standin("torch.version", cuda=None, hip=None)
for line in ("limit 50%", "limit"):
    print(flat(gpu(line)))
print(gpu("limit --json")["torch"])
"""
    *texts, way = answers(driver_double, code)
    version = "2.13.0" if imported else "2.13.0+cpu"
    words = f"torch {version} is built without CUDA, so it has nothing to cap"
    assert (texts, way) == ([words, words], "without CUDA")


def test_what_stands_in_the_environment_is_listed_again_and_after_the_import(driver_double):
    code = f"""
VERSION, JAX = "2.11.0", "0.11.2"
{NO_TORCH}
for line in ("limit 50%", "limit 50%", "limit"):
    print(flat(gpu(line)))
torch_standin(initialised=False, **caps)
print(flat(gpu("limit")))
print(gpu("limit --json")["caps"][0]["fraction"])
standin("torch.cuda")
standin("torch.version", cuda=None, hip=None)
print(flat(gpu("limit")))
"""
    first, *others, after, fraction, without = answers(driver_double, code)
    told = "In the environment: PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5"
    assert others == [first, first]
    for text in (first, after, without):
        assert told in text
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.5" in text
    assert after.startswith("torch's cache will be capped when torch initialises CUDA cuda:0 =")
    assert fraction == "0.5"
    assert without.startswith("torch 2.11.0+cu130 is built without CUDA")


def test_a_jax_that_has_begun_keeps_its_share(driver_double):
    code = """
torch_standin(**caps)
freeze()
standin("jax")
standin("jax._src.xla_bridge", _backends={"cuda": None})
print(flat(gpu("limit 50%")))
print("XLA_PYTHON_CLIENT_MEM_FRACTION" in os.environ)
"""
    text, named = answers(driver_double, code)
    assert "JAX has opened its GPUs: its share stays as it is until a restart." in text
    assert named == "False"


def test_a_cap_below_what_a_context_takes_changes_nothing(driver_double):
    code = """
from jupyter_gpu.core.errors import GPUError
torch_standin(**caps)
freeze()
try:
    gpu("limit 100MB")
except GPUError as error:
    print(error)
print(kept)
"""
    refused, kept = answers(driver_double, code)
    assert refused.startswith("A cap of 100 MB on cuda:0 is refused: a CUDA context takes some")
    assert kept == "{}"


def test_on_a_simulated_machine_it_works_as_far_as_it_can(eight_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "x:1")  # so that it is as it was after the test
        monkeypatch.delenv(name)
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        answer = shell.run_line_magic("gpu", "limit 50% --json")
        shell.run_line_magic("gpu", "limit off")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        with pytest.raises(GPUError, match="no GPU is visible here"):
            shell.run_line_magic("gpu", "limit 50%")
    assert [cap["index"] for cap in answer["caps"]] in ([0, 1], [])
    assert "per_process_memory_fraction" not in str(dict(os.environ))
