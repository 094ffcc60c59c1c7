"""Which names hold torch's memory, over real tensors of torch's CPU build."""

import gc
import sys
import types
import warnings

import pytest

from jupyter_gpu.adapters import held_tensors as module
from jupyter_gpu.adapters.held_tensors import LAST_ERROR, held_tensors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch misses numpy
    torch = pytest.importorskip("torch")

KIB = 1024


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch):
    for name in ("last_exc", "last_value", "last_traceback"):
        monkeypatch.delattr(sys, name, raising=False)
    gc.collect()


def zeros(kib):
    return torch.zeros(kib * KIB // 4)


def held(outputs=None, stops=(), **namespace):
    return held_tensors(namespace, outputs or {}, stops=stops, kind="cpu")


def rows(found):
    return [(holder.names, holder.number_bytes // KIB) for holder in found.holders]


def grown_linear():
    """A module with gradients, and its optimizer with its state: 4 + 4 + 8 KiB, and a little."""
    model = torch.nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 32)).sum().backward()
    optimizer.step()
    return model, optimizer


class Trainer:
    def __init__(self, kib):
        self.inner = {"deep": [(zeros(kib),)]}


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, kib):
        self.tensor = zeros(kib)


def closure(kib):
    kept = zeros(kib)
    return lambda: kept


def generator(kib):
    kept = zeros(kib)
    yield
    yield kept


def begun(made):
    next(made)
    return made


def in_a_circle(kib):
    circle = [zeros(kib)]
    circle.append(circle)
    return circle


class Named(torch.Tensor):
    """A subclass that would answer for itself, if it were asked."""

    @classmethod
    def __torch_function__(cls, *arguments, **named):
        raise AssertionError("the person's own code was called")


@pytest.mark.parametrize(
    ("value", "about"),
    [
        (lambda: zeros(8), "Tensor"),
        (lambda: torch.nn.Parameter(zeros(8)), "Parameter"),
        (lambda: zeros(8).as_subclass(Named), "Named"),
        (lambda: [zeros(4), zeros(4)], "list"),
        (lambda: (zeros(8),), "tuple"),
        (lambda: {"a": {"b": zeros(8)}}, "dict"),
        (lambda: {zeros(8)}, "set"),
        (lambda: Trainer(8), "Trainer"),
        (lambda: Slotted(8), "Slotted"),
        (lambda: closure(8), "function"),
        (lambda: begun(generator(8)), "generator"),
        (lambda: in_a_circle(8), "list"),
        (lambda: Trainer(8).__init__.__self__, "Trainer"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(32, 64, bias=False)), "Sequential"),
        (lambda: iter([zeros(8)]), "list_iterator"),
    ],
)
def test_a_tensor_is_found_wherever_a_variable_leads(value, about):
    found = held(x=value())
    assert rows(found) == [(("x",), 8)]
    assert found.holders[0].about == about


def test_the_biggest_comes_first():
    found = held(small=zeros(1), big=zeros(9), middle=[zeros(2), zeros(3)])
    assert rows(found) == [(("big",), 9), (("middle",), 5), (("small",), 1)]
    assert found.holders[1].tensors == 2


def test_views_of_one_memory_count_once_and_all_names_are_told():
    x = zeros(8)
    found = held(x=x, y=x[10:], z=[x.view(-1), x.t()])
    assert rows(found) == [(("x", "y", "z"), 8)]
    assert found.holders[0].tensors == 1


def test_a_model_its_gradients_and_its_optimizer_are_told_apart():
    model, optimizer = grown_linear()
    found = held(model=model, optimizer=optimizer)
    assert sorted(rows(found)) == [(("model", "optimizer"), 8), (("optimizer",), 8)]


def test_results_that_the_shell_keeps_are_named_by_their_cell():
    x = zeros(8)
    found = held({5: x, 7: zeros(2)}, _=x, __=x, _5=x, In=[x], Out={5: x}, _oh={5: x})
    assert rows(found) == [(("Out[5]",), 8), (("Out[7]",), 2)]


def test_the_last_error_s_traceback_holds_what_its_functions_held(monkeypatch):
    def step():
        activation = zeros(8)
        raise RuntimeError(str(activation.shape))

    try:
        step()
    except RuntimeError as error:
        for name in ("last_exc", "last_value"):
            monkeypatch.setattr(sys, name, error, raising=False)
    assert rows(held()) == [((LAST_ERROR,), 8)]


def test_tensors_without_a_name_are_counted():
    before = held()
    hidden = [zeros(8), zeros(4)]
    found = held()
    assert found.holders == ()
    assert found.unnamed - before.unnamed == 2
    assert found.unnamed_bytes - before.unnamed_bytes == 12 * KIB
    del hidden


def test_what_stops_is_not_followed():
    shell = types.SimpleNamespace(everything=zeros(8))
    assert held(stops=(shell,), ip=shell).holders == ()


def test_code_is_not_followed():
    here = types.ModuleType("here")
    here.tensor = zeros(8)
    cls = type("Cls", (), {"tensor": zeros(8)})
    assert held(here=here, cls=cls, function=grown_linear, built_in=len).holders == ()


def test_tensors_of_another_kind_of_device_do_not_count():
    assert held_tensors({"x": zeros(8)}, {}, kind="cuda").holders == ()
    assert held(x=torch.empty(8, device="meta"), y=torch.zeros(0)).holders == ()


def test_without_torch_nothing_is_held():
    assert held_tensors({"x": zeros(8)}, {}, modules={}).holders == ()
    assert held_tensors({"x": 1}, {}, modules={"torch": types.ModuleType("torch")}).holders == ()


class Tripwire(type):
    """A metaclass whose every answer is the person's own code."""

    def _refuse(cls, *arguments):
        raise AssertionError("the person's own code was called")

    __instancecheck__ = __subclasscheck__ = __hash__ = __eq__ = __repr__ = _refuse
    mro_seen = property(_refuse)


def refuse(self, *arguments):
    raise AssertionError("the person's own code was called")


def test_nothing_of_the_person_s_is_called():
    special = (
        *("__len__", "__iter__", "__eq__", "__hash__", "__repr__", "__str__", "__bool__"),
        *("__getattr__", "__getattribute__", "__contains__", "__getitem__", "__del_not__"),
    )
    body = {**dict.fromkeys(special, refuse), "__class__": property(refuse)}
    hostile = Tripwire("Hostile", (dict,), body)()
    dict.__setitem__(hostile, "x", zeros(8))
    inside = Tripwire("Inside", (), body)()
    object.__setattr__(inside, "tensor", zeros(4))
    namespace = {"hostile": hostile, "inside": inside}
    found = held_tensors(namespace, {}, kind="cpu")
    assert rows(found) == [(("hostile",), 8), (("inside",), 4)]
    assert [holder.about for holder in found.holders] == ["Hostile", "Inside"]


def test_a_subclass_that_dispatches_by_itself_is_followed_and_not_asked():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, *arguments, **named):
            raise AssertionError("the person's own code was called")

    found = held(x=Wrapper(zeros(8)))
    assert rows(found) == [(("x",), 8)]


def test_very_many_objects_are_not_all_looked_at(monkeypatch):
    monkeypatch.setattr(module, "_LOOKED_AT_MOST", 50)
    found = held(many=[[number] for number in range(100)], x=zeros(8))
    assert not found.complete
    assert held(x=zeros(8)).complete


def test_a_variable_of_the_shell_s_own_kind_of_name_is_still_a_variable():
    assert rows(held(_hidden=zeros(8), i=zeros(4), ii=zeros(2))) == [
        (("_hidden",), 8),
        (("i",), 4),
        (("ii",), 2),
    ]
