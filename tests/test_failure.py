"""Real exceptions with real tracebacks: which are explained, and that nothing of them is run."""

import argparse
import asyncio
import builtins
import dataclasses
import importlib
import json
import os
import re
import sys
import time
import types
from decimal import Decimal

import pytest
from support_cli import kernel
from support_failures import flat, module, run, seen
from support_shell import make_shell

from jupyter_gpu.failure import explain

TORCH_CUDA = module(
    "torch.cuda",
    """
def get_device_properties(device):
    raise AssertionError("Invalid device id")

def set_device(device):
    raise_from_compiled_code("CUDA error: invalid device ordinal")
""",
    raise_from_compiled_code=lambda text: (_ for _ in ()).throw(RuntimeError(text)),
)
PROPERTIES = TORCH_CUDA.get_device_properties
PARALLEL = module(
    "torch.nn.parallel.data_parallel",
    """
class DataParallel:
    def __init__(self, module, device_ids=None):
        self.device_ids = [int(str(one).split(":")[-1]) for one in device_ids]
        _check_balance(self.device_ids)

def _check_balance(device_ids):
    return [get_device_properties(one) for one in device_ids]
""",
    get_device_properties=TORCH_CUDA.get_device_properties,
)
CUDA = types.SimpleNamespace(set_device=TORCH_CUDA.set_device)


class Reader:
    """Reads an overview, and counts how often it had to."""

    def __init__(self, value="1,2", **changes):
        self.value, self.changes, self.count = value, changes, 0

    def __call__(self):
        self.count += 1
        return seen(self.value, **self.changes)


def hint(text, value="1,2", *, error=None, **names):
    """The hint on what a text ends with, as one line; frozen with the value in force."""
    given = tuple(map(int, value.split(","))) if value else ()
    read = Reader(value, state="frozen", in_force=given)
    error = error or run(text, **names)
    view = explain(error, text, read)
    assert read.count == (0 if view is None else 1)
    return None if view is None else flat(view)


def compiled(text):
    """A function that raises as torch's compiled code does: not by a ``raise`` of the cell."""
    made = module(
        "torch._compiled", "def raises(*given, **named):\n    raise RuntimeError(TEXT)", TEXT=text
    )
    return made.raises


MOVES = compiled("CUDA error: invalid device ordinal\nCUDA kernel errors might be")


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("DataParallel(None, device_ids=[1])", "0", "device_ids=[1]: this kernel sees 1 device"),
        ("DataParallel(None, device_ids=(1,))", "0", "→ DataParallel(model, device_ids=[0])"),
        ("DataParallel(None, device_ids=['cuda:1'])", "0", "device_ids=[1]: this kernel sees"),
        ("DataParallel(None, device_ids='1')", "0", "device_ids=[1]: this kernel sees"),
        (
            "DataParallel(None, device_ids=[2, 3])",
            "2,3",
            "→ DataParallel(model, device_ids=[0, 1])",
        ),
        (
            "n = 2\nids = [k + 1 for k in range(n)]\nDataParallel(None, ids)",
            "1,2",
            "device_ids=[1, 2]: this kernel sees 2 devices, so ids are 0 and 1.",
        ),
        (
            "import os\nvisible = '2'\ncuda.set_device(int(visible))",
            "2",
            "set_device(2): this kernel sees 1 device, so the only id is 0. Physical 2 is cuda:0",
        ),
        ("x = f'cuda:{2 + 1}'\nmove(x)", "4,3", "Physical 3 is cuda:1 here."),
        ("class X:\n    gpu = 3\nd = {'gpu': 3}\nmove(device=d['gpu'])", "4,3", "device=3: this"),
        ("def go(k):\n    move(device=k)\ngo(3)", "4,3", "device=3: this kernel"),
        ("for k in range(5, 6):\n    move(device=k)", "4,3", "device=5: this kernel"),
        ("move(device=args.gpu)", "4,3", "device=3: this kernel sees 2 devices"),
        ("move(device=own.gpu)", "4,3", "device=7: this kernel sees 2 devices"),
        ("move(unknown())", "4,3", "That device id is not here: this kernel sees 2 devices"),
        ("with open_on(3):\n    pass", "4,3", "That device id is not here"),
    ],
)
def test_computed_ids_are_found(text, value, words):
    class Own:
        def __init__(self):
            self.gpu = 7

    found = hint(
        text,
        value,
        DataParallel=PARALLEL.DataParallel,
        cuda=CUDA,
        move=MOVES,
        open_on=MOVES,
        unknown=lambda: 3,
        args=argparse.Namespace(gpu=3),
        own=Own(),
    )
    assert words in found


def test_the_variable_itself_is_a_known_number(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    text = "import os\nmove(device=int(os.environ['CUDA_VISIBLE_DEVICES']))"
    assert "device=2: this kernel sees 1 device" in hint(text, "2", move=MOVES)


def test_a_library_that_asked_is_named(tmp_path, monkeypatch):
    set_device = module(
        "torch.cuda",
        "def set_device(device):\n    raise RuntimeError('CUDA error: invalid device ordinal')",
    ).set_device
    (tmp_path / "fakeformers").mkdir()
    (tmp_path / "fakeformers" / "__init__.py").write_text(
        "from fakeformers.trainer import Trainer\n"
    )
    (tmp_path / "fakeformers" / "trainer.py").write_text(
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.device = 'cuda:3'\n"
        "    def train(self, move):\n"
        "        return move(self.device)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = "import fakeformers\nfakeformers.Trainer().train(move)"
    found = hint(text, "1,3", move=set_device)
    assert found.startswith("cuda:3: this kernel sees 2 devices")
    assert "Physical 3 is cuda:1 here." in found
    assert "Raised inside fakeformers." in found
    sys.modules.pop("fakeformers"), sys.modules.pop("fakeformers.trainer")


def test_a_uuid_that_a_library_reads_as_a_number(tmp_path, monkeypatch):
    value = "GPU-00000003-5d9e-4a86-9c04-71e6a3d8f25b"
    (tmp_path / "fakellm.py").write_text(f"def start():\n    return int({value!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = run("import fakellm\nfakellm.start()")
    sys.modules.pop("fakellm")
    text = flat(explain(error, "", Reader(value)))
    assert text.startswith("fakellm reads CUDA_VISIBLE_DEVICES as numbers")
    assert "%env CUDA_VISIBLE_DEVICES=3" in text
    assert explain(error, "", Reader("3")) is None


REAL = [
    "torch.zeros(2).cuda()",
    "torch.zeros(2, device='cuda:3')",
    "torch.zeros(2).to('cuda')",
    "torch.nn.Linear(2, 2).to('cuda:1')",
    "torch.cuda.set_device(1)",
    "torch.cuda.current_device()",
    "torch.cuda.get_device_properties(0)",
    "torch.cuda.mem_get_info(0)",
    "torch.Generator(device='cuda:3')",
    "torch.cuda.Stream(device=3)",
    "torch.zeros(2).cuda(3)",
]


@pytest.mark.parametrize("text", REAL)
def test_torchs_own_errors_of_a_build_without_cuda(text):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    error = run(text, torch=torch)
    found = flat(explain(error, text, Reader()))
    assert "is a build without CUDA: it knows the CPU only." in found
    assert "2 GPUs are visible here." in found


def test_torchs_own_error_of_a_file_from_a_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    text = "default_restore_location(torch.zeros(1).untyped_storage(), 'cuda:3')"
    error = run(
        text, torch=torch, default_restore_location=torch.serialization.default_restore_location
    )
    assert "on a CUDA device but torch.cuda.is_available() is False" in str(error)
    assert "build without CUDA" in flat(explain(error, text, Reader()))


def test_torchs_own_words_for_a_model_that_is_elsewhere(monkeypatch):
    torch = pytest.importorskip("torch")
    module_ = sys.modules["torch.nn.parallel.data_parallel"]
    monkeypatch.setattr(module_, "_get_available_device_type", lambda: "cuda", raising=False)
    monkeypatch.setattr(module_, "_check_balance", lambda ids: None)
    monkeypatch.setattr(module_, "_get_device_index", lambda one, optional: one)
    text = "model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[1, 0])\nmodel(torch.zeros(1, 2))"
    found = hint(text, "1,2", torch=torch)
    assert found.startswith(
        "Part of the model is on the CPU; device_ids begins with cuda:1 (physical 2)."
    )


def test_torchs_devices_are_read_by_their_index():
    torch = pytest.importorskip("torch")
    text = "move(device)"
    assert "cuda:3: this" in hint(text, "1,2", move=MOVES, device=torch.device("cuda:3"))
    assert "cuda:3: this" in hint("move(torch.device('cuda', 3))", "1,2", move=MOVES, torch=torch)


def test_causes_and_contexts_are_followed():
    for text in (
        "try:\n    move(device=3)\nexcept RuntimeError as error:\n    raise OSError('no') from error",
        "try:\n    move(device=3)\nexcept RuntimeError:\n    undefined",
        "try:\n    move(device=3)\nfinally:\n    1 / 0",
    ):
        assert "device=3: this kernel sees 2 devices" in hint(text, move=MOVES)


def remote_error():
    """An error as Ray makes it: of its own type, and of the one that the worker's had."""
    kinds = module("ray.exceptions", "class RayTaskError(RuntimeError):\n    pass")
    return kinds.RayTaskError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_an_error_of_another_machine_gets_no_hint():
    full = "CUDA out of memory. Tried to allocate 2.00 GiB."
    client = module("distributed.client", "def gather(error):\n    raise error")
    rpc = compiled(f"On WorkerInfo(id=1, name=worker1):\n{full}")
    answer = compiled(f"the server says\nTraceback (most recent call last):\n  …\n{full}")
    plain = module("service", "def ask(error):\n    raise error").ask
    for text in (
        "ask(remote)",
        "gather(local)",
        "rpc()",
        "ask(answer)",
        "try:\n    ask(remote)\nexcept RuntimeError as error:\n    ask(local)",
    ):
        error = run(
            text,
            ask=plain,
            gather=client.gather,
            rpc=rpc,
            remote=remote_error(),
            local=RuntimeError(full),
            answer=RuntimeError(f"Traceback (most recent call last):\n  …\n{full}"),
        )
        assert explain(error, text, Reader()) is None, text
    assert explain(run("answer()", answer=answer), "", Reader()) is not None
    assert explain(run("ask(e)", ask=plain, e=RuntimeError(full)), "", Reader()) is not None


def test_an_id_too_large_to_be_read_is_called_only_wrong():
    found = hint("get_device_properties(10**30)", get_device_properties=PROPERTIES)
    assert found.startswith("That device id is not here: this kernel sees 2 devices")


def test_what_a_person_hid_stays_hidden():
    text = "try:\n    move(device=3)\nexcept RuntimeError:\n    raise OSError('no') from None"
    assert hint(text, move=MOVES) is None


def test_a_circle_of_causes_ends():
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert explain(one, "", Reader()) is None


@pytest.mark.skipif(not hasattr(builtins, "ExceptionGroup"), reason="from Python 3.11 on")
def test_members_of_a_group_are_looked_at():
    inner = run("move(device=3)", move=MOVES)
    group = ExceptionGroup("two", [ValueError("x"), ExceptionGroup("inner", [inner])])  # noqa: F821
    assert "this kernel sees 2 devices" in flat(explain(group, "move(device=3)", Reader()))
    assert explain(ExceptionGroup("none", [ValueError("x")]), "", Reader()) is None  # noqa: F821


def test_an_error_without_a_traceback_is_no_crash():
    assert "No GPU" in flat(explain(RuntimeError("No CUDA GPUs are available"), "", Reader("-1")))


def test_the_text_of_a_tensorflow_error_is_read_where_it_keeps_it():
    kinds = module(
        "tensorflow.python.framework.errors_impl",
        "class OpError(Exception):\n"
        "    def __init__(self, message):\n"
        "        super().__init__()\n"
        "        self._message = message\n"
        "    def __str__(self):\n"
        "        raise SystemExit\n"
        "class InvalidArgumentError(OpError):\n    pass\n",
    )
    error = kinds.InvalidArgumentError("Could not satisfy device specification '/device:GPU:3'.")
    assert "GPU:3: this kernel sees 2 devices" in flat(explain(error, "", Reader()))


def test_numbas_list_of_devices():
    devices = module(
        "numba.cuda.cudadrv.devices", "def get_context(devnum):\n    return [0, 1][devnum]\n"
    )
    found = hint("from_numba(3)", "1,3", from_numba=devices.get_context)
    assert found.startswith("devnum=3: this kernel sees 2 devices")
    assert "Physical 3 is cuda:1 here." in found


CALLS = []


class Trap:
    """Counts every way in which somebody could run its code."""

    calls = CALLS

    def _note(self, name):
        type(self).calls.append(name)
        raise RuntimeError(name)

    def __getattribute__(self, name):
        Trap.calls.append(name)
        raise RuntimeError(name)

    def __repr__(self):
        Trap.calls.append("repr")
        raise RuntimeError("repr")

    __str__ = __repr__

    def __eq__(self, other):
        Trap.calls.append("eq")
        raise RuntimeError("eq")

    def __hash__(self):
        return hash("device")

    def __bool__(self):
        Trap.calls.append("bool")
        raise RuntimeError("bool")

    def __index__(self):
        Trap.calls.append("index")
        raise RuntimeError("index")

    __int__ = __len__ = __iter__ = __index__


class TrapText(str):
    __slots__ = ()

    def lower(self):
        Trap.calls.append("lower")
        raise RuntimeError("lower")

    def __str__(self):
        Trap.calls.append("str")
        raise RuntimeError("str")

    __contains__ = __getitem__ = __eq__ = __format__ = lower
    __hash__ = str.__hash__


class TrapError(RuntimeError):
    @property
    def args(self):
        Trap.calls.append("args")
        raise RuntimeError("args")

    @property
    def __cause__(self):
        Trap.calls.append("cause")
        raise RuntimeError("cause")

    __context__ = __traceback__ = __suppress_context__ = __dict__ = __class__ = __cause__

    def __str__(self):
        Trap.calls.append("str")
        raise RuntimeError("str")


class TrapMeta(type):
    @property
    def __mro__(cls):
        Trap.calls.append("mro")
        raise RuntimeError("mro")

    def __instancecheck__(cls, other):
        Trap.calls.append("instancecheck")
        raise RuntimeError("instancecheck")

    __name__ = __module__ = __mro__

    def __eq__(cls, other):
        Trap.calls.append("type eq")
        raise RuntimeError("type eq")

    __hash__ = type.__hash__


class Odd(metaclass=TrapMeta):
    pass


class OddError(RuntimeError, metaclass=TrapMeta):
    pass


@pytest.fixture
def traps():
    Trap.calls.clear()
    yield Trap.calls
    assert Trap.calls == []


def test_hostile_names_are_not_touched(traps):
    names = {"trap": Trap(), "words": TrapText("cuda:3"), "odd": Odd(), "listed": [Trap()]}
    for text in (
        "trap",
        "trap.gpu",
        "trap['gpu']",
        "trap + 1",
        "-trap",
        "words",
        "words + ':1'",
        "words.split(',')",
        "odd",
        "odd.gpu",
        "listed",
        "listed[0]",
        "listed[trap]",
        "f'cuda:{trap}'",
        "'cuda:%s' % trap",
        "'cuda:{}'.format(trap)",
        "int(trap)",
        "range(trap)",
        "[k for k in trap]",
    ):
        # The call fails first: what stands behind it in the statement is never run, by anybody.
        found = hint(f"move() or go(device={text})", move=MOVES, **names)
        assert found.startswith("That device id is not here: this kernel sees 2 devices")


def test_keys_of_a_dictionary_are_not_compared(traps):
    found = hint("move() or go(device=d['device'])", move=MOVES, d={Trap(): 1, "a": 2})
    assert found.startswith("That device id is not here")


def test_a_worker_that_was_forked(monkeypatch):
    pool = module("multiprocessing.pool", "def get(value):\n    raise value")
    error = run("get(error)", get=pool.get, error=RuntimeError("CUDA error: initialization error"))
    text = flat(explain(error, "", Reader("1", state="frozen", in_force=(1,))))
    assert text.startswith("CUDA is in use in this kernel, so processes forked from it cannot")


def test_a_property_is_not_asked(traps):
    class Config:
        @property
        def gpu(self):
            Trap.calls.append("gpu")
            return 3

    class Asks:
        def __getattr__(self, name):
            Trap.calls.append(name)
            return 3

    class Slotted:
        __slots__ = ("gpu",)

    for one in (Config(), Asks(), Slotted()):
        found = hint(
            "move(device=config.gpu)" if False else "move(config)\nconfig.gpu",
            move=MOVES,
            config=one,
        )
        assert found.startswith("That device id is not here")


def test_hostile_errors_are_not_asked(traps):
    for error in (
        TrapError("CUDA out of memory"),
        OddError("No CUDA GPUs are available"),
        RuntimeError(Trap()),
        RuntimeError(TrapText("CUDA out of memory")),
        RuntimeError("CUDA out of memory", Trap()),
    ):
        explain(error, "", Reader("-1"))


def test_names_and_frames_may_be_odd(traps):
    error = run("__name__ = Odd\nmove(3)", move=MOVES, Odd=Trap())
    assert explain(error, "", Reader()) is not None
    error = run("1 / 0", __name__=Trap())
    assert explain(error, "", Reader()) is None


def test_endless_things_end(traps):
    def deep(n):
        return deep(n - 1) if n else MOVES(device=3)

    start = time.perf_counter()
    assert explain(run("deep(900)", deep=deep), "", Reader()) is not None
    huge = RuntimeError("CUDA out of memory" + "x" * 10**7)
    explain(huge, "", Reader())
    explain(RuntimeError(10**5000), "", Reader())
    hint("move(device=n)", move=MOVES, n=10**5000)
    hint("move(device=n)", move=MOVES, n=[[[[[[1]]]]]])
    hint("move(device=n)", move=MOVES, n=list(range(10**6)))
    assert time.perf_counter() - start < 5


class Own(Exception):
    pass


def own_assertion():
    assert not CALLS, "Invalid device"
    raise AssertionError("Invalid device")


def own_raise(kind, text):
    raise kind(text)


ORDINARY = [
    "1 / 0",
    "{}['a']",
    "{}['cuda:3']",
    "{}['No CUDA GPUs are available']",
    "undefined",
    "import no_such_module_at_all",
    "from os import no_such_name",
    "[][0]",
    "[1, 2][5]",
    "(1,)[3]",
    "int('x')",
    "int('3.5')",
    "int('CUDA out of memory')",
    "float('cuda')",
    "None.cuda()",
    "'x' + 1",
    "len(3)",
    "open('/no/such/file')",
    "open('/')",
    "json.loads('{')",
    "re.compile('(')",
    "'é'.encode('ascii')",
    "b'\\xff'.decode()",
    "next(iter([]))",
    "assert False",
    "assert False, 'Invalid device id'",
    "assert False, 'Torch not compiled with CUDA enabled'",
    "own_assertion()",
    "raise AssertionError('Invalid device')",
    "raise ValueError('cuda is not available')",
    "raise ValueError('CUDA error: invalid device ordinal')",
    "raise RuntimeError('CUDA out of memory')",
    "raise RuntimeError('No CUDA GPUs are available')",
    "raise RuntimeError",
    "raise Own('No CUDA GPUs are available')",
    "raise Own(1, 2, None, 3.5)",
    "raise KeyboardInterrupt",
    "raise SystemExit(3)",
    "raise MemoryError",
    "raise MemoryError('out of memory')",
    "raise TimeoutError('cuda')",
    "raise NotImplementedError('cuda')",
    "raise OSError(2, 'No such file', 'cuda:3')",
    "raise StopIteration",
    "raise BaseException('x')",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'cuda')",
    "compile('1 +', 'x', 'exec')",
    "exec('  x')",
    "exec('def f(:')",
    "dataclasses.replace(3)",
    "Decimal('x')",
    "importlib.import_module('')",
    "asyncio.run(3)",
    "os.kill('a', 1)",
    "recursive()",
    "torch.zeros(2) @ torch.zeros(3)",
    "torch.device('cuda:x')",
    "torch.device('gpu')",
    "torch.zeros(2).view(5)",
    "torch.load('/no/such/file')",
    "torch.empty(10**15)",
    "torch.nn.Linear(2, 2)(torch.zeros(3))",
    "torch.zeros(2)[7]",
    "torch.no_such_thing",
    "torch.cuda.no_such_thing",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_error_gets_no_hint(text):
    names = {"torch": pytest.importorskip("torch")} if "torch." in text else {}

    def recursive():
        return recursive()

    names.update(json=json, re=re, os=os, asyncio=asyncio, Decimal=Decimal, Own=Own)
    names.update(dataclasses=dataclasses, importlib=importlib, recursive=recursive)
    error = run(text, own_assertion=own_assertion, **names)
    assert error is not None
    read = Reader()
    assert explain(error, text, read) is None
    assert read.count == 0


def test_there_are_enough_of_them():
    assert len(ORDINARY) >= 40


def test_it_costs_less_than_a_millisecond():
    errors = [run(text) for text in ORDINARY if "torch" not in text and "import" not in text]
    errors.append(ValueError("x" * 100_000))
    read = Reader()
    best = min(_seconds(errors, read) for _ in range(5))
    assert best / len(errors) < 0.001


def _seconds(errors, read):
    start = time.perf_counter()
    for error in errors:
        explain(error, "", read)
    return time.perf_counter() - start


def test_in_a_shell_the_cells_text_is_known_with_its_magics():
    with make_shell() as shell:
        shell.push({"move": MOVES})
        shell.run_cell("def go(k):\n    %time 1\n    return move(device=k + 1)\n")
        source = "%time 2\nn = 4\nfor k in range(n - 1, n):\n    go(k)"
        result = shell.run_cell(source)
    error = result.error_in_exec
    assert "device=4: this kernel sees 2 devices" in flat(explain(error, source, Reader()))


def test_a_kernel_that_was_not_read_gets_no_hint():
    view = explain(
        RuntimeError("No CUDA GPUs are available"),
        "",
        lambda: dataclasses.replace(seen(), process=None),
    )
    assert view is None
    assert kernel().pid
