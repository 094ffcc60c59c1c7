"""What each framework remembers, and what one is told about it."""

import pytest

from jupyter_gpu.core.frameworks import (
    BY_MODULE,
    FRAMEWORKS,
    MODULES,
    advice,
    remembers,
    uuid_refused,
    version_pair,
)
from jupyter_gpu.core.history import Frozen, History, Imported

UUIDS = {"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111-5d9e-4a86-9c04-000000000000"}


def history(*modules, frozen=None):
    imported = tuple(Imported(one, BY_MODULE[one].name, version, 2) for one, version in modules)
    return History(imported, frozen)


@pytest.mark.parametrize(
    ("version", "pair"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("1.13", (1, 13)),
        ("2.3.0a0+git1234", (2, 3)),
        ("0.9", (0, 9)),
        ("", None),
        ("main", None),
        ("2", None),
        ("9999999.1", None),
        (None, None),
    ],
)
def test_a_version_is_read_as_two_numbers_or_not_at_all(version, pair):
    assert version_pair(version) == pair


@pytest.mark.parametrize(
    ("module", "version", "environ", "words"),
    [
        ("torch", "1.12.1", {}, "initialises CUDA in torch.cuda.device_count()"),
        ("torch", "1.13.0", {}, "remembers the first torch.cuda.device_count()"),
        ("torch", "2.2.2+cu121", {}, "remembers the first torch.cuda.device_count()"),
        ("torch", "2.3.0", {}, None),
        ("torch", "2.13.0+cpu", {}, None),
        ("torch", None, {}, None),
        ("torch", "unknown", {}, None),
        ("torch", "2.13.0", {"KINETO_USE_DAEMON": "1"}, "KINETO_USE_DAEMON is set"),
        ("torch", "2.13.0", {"KINETO_USE_DAEMON": ""}, None),
        ("paddle", "3.0", {}, "Paddle reads its devices"),
        ("pycuda.autoinit", None, {}, "pycuda.autoinit takes its device"),
        ("pycuda", None, {}, None),
        ("jax", "0.9", {}, None),
        ("tensorflow", "2.19", {}, None),
    ],
)
def test_an_import_that_fixes_devices_though_cuda_is_open_is_known(module, version, environ, words):
    said = remembers(module, version, environ)
    assert (said is None) == (words is None)
    assert (words or "") in (said or "")


@pytest.mark.parametrize(
    "module", [one for one in MODULES if one not in ("paddle", "pycuda.autoinit", "vllm")]
)
@pytest.mark.parametrize("value", [None, "0,1", ""])
def test_an_import_that_fixes_nothing_gets_no_advice(module, value):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert advice(history((module, "2.13.0")), environ, frozen=False) == ()


def test_an_import_that_initialised_cuda_says_when_to_set_the_variable():
    found = advice(
        history(("torch", "2.13.0"), frozen=Frozen(4, chain=("kornia", "xformers.ops"))),
        {},
        frozen=True,
    )
    assert found == (
        "import xformers.ops initialises CUDA: to choose devices, set CUDA_VISIBLE_DEVICES before cell [4] runs.",
    )
    assert advice(history(frozen=Frozen(4, call="torch.cuda.init")), {}, frozen=True) == ()
    assert advice(history(frozen=Frozen(None, "before")), {}, frozen=True) == ()


@pytest.mark.parametrize("module", ["paddle", "pycuda.autoinit"])
def test_an_import_that_took_its_devices_is_told_once(module):
    # The state's own line says that this import has initialised CUDA.
    found = advice(history((module, "3.0"), frozen=Frozen(2, chain=(module,))), {}, frozen=True)
    assert found == (
        f"import {module} initialises CUDA: to choose devices, set CUDA_VISIBLE_DEVICES before cell [2] runs.",
    )
    (only,) = advice(history((module, "3.0"), frozen=Frozen(3)), {}, frozen=True)
    assert "while it is imported; it was imported in cell [2]." in only


def test_an_old_torch_is_told_with_its_cell():
    assert advice(history(("torch", "2.2.0")), {}, frozen=False) == (
        "torch 2.2.0 remembers the first torch.cuda.device_count() for good; it was imported in cell [2].",
    )
    early = History((Imported("torch", "torch", "2.2.0", None, when="before"),))
    assert advice(early, {}, frozen=False)[0].endswith(
        "it was imported before jupyter_gpu watched its cells."
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, True), ("true", True), ("1", True), ("false", False), ("False ", False), ("0", False)],
)
def test_jaxs_memory_is_told_once_cuda_is_initialised_unless_it_is_spared(value, told):
    environ = {} if value is None else {"XLA_PYTHON_CLIENT_PREALLOCATE": value}
    found = advice(history(("jax", "0.9"), frozen=Frozen(3)), environ, frozen=True)
    assert any("three quarters" in sentence for sentence in found) is told
    assert advice(history(("jax", "0.9")), environ, frozen=False) == ()


def test_vllm_is_warned_of_uuids_and_of_nothing_else():
    assert "--identifiers index" in advice(history(("vllm", "0.9")), UUIDS, frozen=False)[0]
    assert advice(history(("torch", "2.13.0")), UUIDS, frozen=False) == ()
    for value in (None, "", "0,1", "-1"):
        assert uuid_refused(value) is None
    assert uuid_refused("MIG-aaaa") is not None


def test_every_framework_is_known_once_by_its_module():
    assert len({one.module for one in FRAMEWORKS}) == len(FRAMEWORKS)
    assert set(BY_MODULE) == set(MODULES)
