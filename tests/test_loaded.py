import importlib.util
import sys
import types

import pytest

from jupyter_gpu.adapters.loaded import is_torch_without_gpus, names_in


def module(**names):
    made = types.ModuleType("torch.version")
    made.__dict__.update(names)
    return {"torch.version": made}


@pytest.mark.parametrize(
    ("modules", "answer"),
    [
        ({}, None),
        ({"torch.version": None}, None),
        (module(), True),
        (module(cuda=None, hip=None), True),
        (module(cuda="13.0", hip=None), False),
        (module(cuda=None, hip="6.2"), False),
    ],
)
def test_a_torch_is_without_gpus_where_it_was_built_for_neither_kind(modules, answer):
    assert is_torch_without_gpus(modules) is answer


def test_a_lazy_module_is_not_woken(tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("raise AssertionError('it was woken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("sleeper")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    monkeypatch.setitem(sys.modules, "sleeper", lazy)
    assert "__version__" not in names_in("sleeper")
