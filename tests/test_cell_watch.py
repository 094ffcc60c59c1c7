"""What is seen of a kernel's cells, over the double of libcuda, in processes of their own."""

import json
import os
import subprocess
import sys
import threading
import tracemalloc
import types

import pytest
from doubles import gpu
from doubles.builder import compiler

from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellWatch

NAME = "CUDA_VISIBLE_DEVICES"
# A kernel reduced to what the watch is told: runs steps, and says what was seen.
KERNEL = """
import ctypes, dataclasses, importlib, json, os, sys, threading
from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellWatch

def freeze():
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
def choose(value):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()

steps = json.load(sys.stdin)
names = {"__name__": "cell", "freeze": freeze, "choose": choose, "in_thread": in_thread,
         "os": os, "sys": sys}
before = steps.pop("before", "")
exec(before, names)
watch = names["watch"] = CellWatch(Launch.of_this_process())
ends = []
for number, source in steps["cells"]:
    if number == "between":
        exec(source, names)
        continue
    watch.begin(number, source)
    stopped_at = None
    try:
        exec(compile(source, "cell", "exec"), names)
    except BaseException as error:
        stopped_at = error.__traceback__.tb_next.tb_lineno
    ended = watch.end(stopped_at)
    ends.append(None if ended is None else dataclasses.asdict(ended))
assert watch.failure is None
seen = dataclasses.asdict(watch.history())
watch.close()
assert watch._imports_watched not in sys.meta_path
print(json.dumps({**seen, "ends": ends}))
"""


@pytest.fixture
def play(driver_double, tmp_path):
    driver_double.write(*map(gpu, range(4)))
    folder = tmp_path / "modules"
    folder.mkdir()

    def play(*cells, before="", modules=None, **variables):
        for name, text in (modules or {}).items():
            path = folder / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        numbered = [one if isinstance(one, tuple) else (n, one) for n, one in enumerate(cells, 1)]
        said = driver_double.python(
            KERNEL,
            stdin=json.dumps({"before": before, "cells": numbered}),
            PYTHONPATH=os.pathsep.join((str(folder), *sys.path)),
            **variables,
        )
        return json.loads(said.splitlines()[-1])

    play.folder = folder
    return play


LIBRARY = "import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)"


@pytest.mark.parametrize(
    ("cells", "cell", "when", "call"),
    [
        (["x = 1"], None, None, None),
        (["x = 1", "freeze()", "x = 2"], 2, "during", None),
        (["freeze()", "freeze()"], 1, "during", None),
        (["class torch:\n class cuda:\n  init = freeze", "torch.cuda.init()"], 2, "during", "torch.cuda.init"),
        (["freeze(); 1/0"], 1, "during", None),
        (["freeze(); 1/0", "torch.cuda.init()"], 1, "during", None),
        (["freeze()\n1/0\ntorch.cuda.init()"], 1, "during", None),
        (["freeze(); raise SystemExit"], 1, "during", None),
        (["freeze(); raise KeyboardInterrupt"], 1, "during", None),
        (["in_thread(freeze)"], 1, "during", None),
        (["x = 1", ("between", "freeze()"), (2, "x = 2")], 1, "after", None),
        (["x = 1", ("between", "freeze()")], 1, "after", None),
        ([("between", "freeze()"), (1, "x = 1")], None, "before", None),
        ([(None, "freeze()")], None, "during", None),
        ([(7, "x = 1"), (None, "x = 2"), ("between", "freeze()")], None, "after", None),
        (["watch.begin(9, 'inner')\nfreeze()\nwatch.end()", "x = 1"], 1, "during", None),
        # %gpu in the cell itself sees what has run so far, and no call behind it.
        (["freeze()\nwatch.history()\ntorch.cuda.init()"], 1, "during", None),
        (["def torch():0\ntorch.cuda = torch\ntorch.cuda.init = freeze\ntorch.cuda.init()\nwatch.history()"], 1, "during", "torch.cuda.init"),
    ],
)
def test_the_cell_that_initialised_cuda_is_known(play, cells, cell, when, call):
    seen = play(*cells)
    frozen = seen["frozen"]
    assert (frozen is None) == (when is None)
    if frozen is not None:
        assert (frozen["cell"], frozen["when"], frozen["call"]) == (cell, when, call)
        assert frozen["chain"] == []


def test_cuda_that_was_initialised_before_is_known_as_that(play):
    seen = play("freeze()", before="freeze()")
    assert (seen["frozen"]["cell"], seen["frozen"]["when"]) == (None, "before")
    assert seen["ends"] == [{"change": None, "frozen_before": True}]


@pytest.mark.parametrize(
    ("modules", "cell", "chain"),
    [
        ({"one": LIBRARY}, "import one", ["one"]),
        ({"one": "import two", "two": "import three", "three": "import four", "four": LIBRARY}, "import one", ["one", "two", "three", "four"]),
        ({"pack/__init__": f"from pack import sub\n{LIBRARY}", "pack/sub": ""}, "import pack", ["pack"]),
        ({"one": "x = 1"}, "import one\nfreeze()", []),
        ({"one": "x = 1", "two": "x = 1"}, "import one\nfreeze()\nimport two", []),
        ({"one": "def go(f): f()"}, "import one\none.go(freeze)", []),
        ({"one": f"try:\n import bad\nexcept ValueError: pass\n{LIBRARY}", "bad": "raise ValueError"}, "import one", ["one"]),
        ({"one": "x = 1"}, "in_thread(importlib_import, 'one')", []),
    ],
)
def test_the_import_that_initialised_cuda_is_known(play, modules, cell, chain):
    before = "from importlib import import_module as importlib_import"
    seen = play(cell, "x = 1", modules=modules, before=before)
    frozen = seen["frozen"]
    if cell.startswith("in_thread"):
        assert frozen is None
    else:
        assert (frozen["cell"], frozen["chain"]) == (1, chain)


LOADED = """
#include <dlfcn.h>
#include <Python.h>
__attribute__((constructor)) static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*start)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    start(0);
}
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "loaded", .m_size = -1};
PyMODINIT_FUNC PyInit_loaded(void) { return PyModule_Create(&module); }
"""


BESIDE = """
import threading
begun, go, done, over = (threading.Event() for _ in range(4))
def beside():
    begun.set()
    go.wait()
    freeze()
    done.set()
    over.wait()
thread = threading.Thread(target=beside)
thread.start()
begun.wait()
"""


def test_where_another_thread_may_have_done_it_no_import_and_no_call_is_named(play):
    seen = play("x = 1", BESIDE, "go.set()\ndone.wait()\nimport colorsys", "over.set()\nthread.join()")
    frozen = seen["frozen"]
    assert (frozen["cell"], frozen["alone"]) == (3, False)
    assert (frozen["chain"], frozen["call"]) == ([], None)


def test_a_compiled_module_that_initialises_cuda_as_it_is_loaded_is_named(play):
    import sysconfig

    headers = sysconfig.get_paths()["include"]
    if not os.path.exists(f"{headers}/Python.h"):
        pytest.skip("no headers of Python")
    source = play.folder / "loaded.c"
    source.write_text(LOADED)
    target = play.folder / f"loaded{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(
        [compiler(), "-shared", "-fPIC", f"-I{headers}", "-o", target, source, "-ldl"], check=True
    )
    seen = play("import outer", modules={"outer": "import json\nimport loaded\nimport colorsys"})
    assert seen["frozen"]["chain"] == ["outer", "loaded"]


def change(before, after, cell, how):
    return {"cell": cell, "before": before, "after": after, "how": how}


CHOOSE = f"os.environ[{NAME!r}] = '1'"


@pytest.mark.parametrize(
    ("cells", "changes", "ends"),
    [
        (["x = 1"], [], [None]),
        ([CHOOSE], [("0", "1", 1, "os.environ")], [0]),
        (["choose('1')"], [("0", "1", 1, "code that it called")], [0]),
        (["x = 1", f"del os.environ[{NAME!r}]"], [("0", None, 2, "os.environ")], [None, 0]),
        (["choose('0')"], [], [None]),
        (["choose('1'); choose('0')"], [], [None]),
        (["choose('1'); choose('2')"], [("0", "2", 1, "code that it called")], [0]),
        (["choose('1'); 1/0"], [("0", "1", 1, "code that it called")], [0]),
        (["choose('1')", "choose('0')"], [("0", "1", 1, "code that it called"), ("1", "0", 2, "code that it called")], [0, 1]),
        (["in_thread(choose, '1')"], [("0", "1", 1, "code that it called")], [0]),
        # Between cells nobody's cell did it.
        (["x = 1", ("between", "choose('1')"), (2, "x = 2")], [("0", "1", 1, "a thread or a callback")], [None, None]),
        # %gpu in the cell notes the change, and the cell is told of all the same.
        (["choose('1')\nwatch.history()"], [("0", "1", 1, "code that it called")], [0]),
        (["choose('1')\nwatch.history()\nchoose('2')"], [("0", "1", 1, "code that it called"), ("1", "2", 1, "code that it called")], [("0", "2", 1, "code that it called")]),
        (["choose('1')\nwatch.history()\nchoose('0')"], [("0", "1", 1, "code that it called"), ("1", "0", 1, "code that it called")], [None]),
        (["watch.begin(9, '')\nchoose('1')\nwatch.end()"], [("0", "1", 1, "code that it called")], [0]),
        (["import chooses"], [("0", "1", 1, "code that it called")], [0]),
        ([(None, "choose('1')")], [("0", "1", None, "code that it called")], [0]),
    ],
)
def test_the_cell_that_changed_the_variable_is_known_and_told_of(play, cells, changes, ends):
    modules = {"chooses": f"import os\n{CHOOSE}"}
    seen = play(*cells, modules=modules, CUDA_VISIBLE_DEVICES="0")
    assert seen["changes"] == [change(*one) for one in changes]
    told = [
        None if end is None else change(*(changes[end] if isinstance(end, int) else end))
        for end in ends
    ]
    assert [end["change"] for end in seen["ends"]] == told


@pytest.mark.parametrize(
    ("cells", "values", "frozen_before"),
    [
        (["freeze()", "choose('1')"], ["0"], [False, True]),
        (["choose('1')", "freeze()"], ["1"], [False, False]),
        (["choose('1'); freeze()"], ["0", "1"], [False]),
        (["freeze(); choose('1')"], ["0", "1"], [False]),
        (["x = 1", ("between", "choose('1')"), (2, "freeze()")], ["1"], [False, False]),
        ([("between", "choose('1'); freeze()"), (1, "x = 1")], ["0", "1"], [True]),
        (["choose('1')\nwatch.history()\nfreeze()"], ["1"], [False]),
        (["freeze()\nwatch.history()\nchoose('1')"], ["0"], [False]),
    ],
)
def test_it_is_known_what_the_driver_may_have_read(play, cells, values, frozen_before):
    seen = play(*cells, CUDA_VISIBLE_DEVICES="0")
    assert seen["frozen"]["values"] == values
    assert [end["frozen_before"] for end in seen["ends"]] == frozen_before


def test_what_was_changed_before_the_watch_began_is_no_change_of_a_cell(play):
    seen = play("x = 1", before="choose('1'); freeze()", CUDA_VISIBLE_DEVICES="0")
    assert seen["changes"] == []
    assert seen["frozen"]["values"] == ["0", "1"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["x = 1"], []),
        (["import torch"], [("torch", "9.1", 1, False, "during")]),
        (["x = 1", "import jax", "import torch"], [("jax", None, 2, False, "during"), ("torch", "9.1", 3, False, "during")]),
        (["import torch\nfreeze()"], [("torch", "9.1", 1, True, "during")]),
        (["import numba"], []),
        (["from numba import cuda"], [("numba.cuda", "0.61", 1, False, "during")]),
        (["import cupy"], []),
        (["sys.modules['jax'] = None"], []),
        (["sys.modules['jax'] = object()"], [("jax", None, 1, False, "during")]),
        (["x = 1", ("between", "import torch"), (2, "x = 2")], [("torch", "9.1", 1, False, "after")]),
        ([("between", "import torch"), (1, "x = 1")], [("torch", "9.1", None, False, "before")]),
        ([(None, "import torch")], [("torch", "9.1", None, False, "during")]),
        (["import torch\nwatch.history()"], [("torch", "9.1", 1, False, "during")]),
        (["import torch; del sys.modules['torch']", "import torch"], [("torch", "9.1", 2, False, "during")]),
        (["import torch", "del sys.modules['torch']"], [("torch", "9.1", 1, False, "during")]),
    ],
)
def test_it_is_known_which_cell_imported_what(play, cells, expected):
    modules = {
        "torch": "class V(str): pass\n__version__ = V('9.1')",
        "jax": "__version__ = (1, 2)",
        "numba/__init__": "__version__ = '0.61'",
        "numba/cuda": "",
        "cupy": "raise ImportError('no CUDA here')",
    }
    seen = play(*cells, modules=modules)
    found = [
        (one["module"], one["version"], one["cell"], one["frozen_after"], one["when"])
        for one in seen["imports"]
    ]
    assert found == expected


def test_a_lazy_module_is_not_woken_to_ask_its_version(play):
    lazy = """
import sys, types
class Sleeps(types.ModuleType):
    def __getattribute__(self, name):
        raise AssertionError(f"woken by {name}")
sys.modules["jax"] = Sleeps("jax")
"""
    assert [one["version"] for one in play(lazy)["imports"]] == [None]


@pytest.mark.parametrize(("value", "call"), [("1", ".cuda()"), ("0", "torch.cuda.is_available")])
def test_a_look_through_nvml_is_not_what_initialised_cuda(play, value, call):
    cell = "torch.cuda.is_available()\nmodel.cuda()"
    before = """
class model: cuda = staticmethod(freeze)
class torch:
    class cuda: is_available = staticmethod(lambda: None)
"""
    seen = play(cell, before=before, PYTORCH_NVML_BASED_CUDA_CHECK=value)
    assert seen["frozen"]["call"] == call


FORK = """
child = os.fork()
if child == 0:
    seen = watch.history()
    watch.begin(2, "")
    choose("3")
    import colorsys
    again = watch.end()
    later = watch.history()
    print(seen.forked_frozen, again, len(later.changes), later.frozen is not None, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([FORK], "False None 0 False"),
        ([f"freeze()\n{FORK}"], "True None 0 False"),
        ([f"{FORK}\nfreeze()"], "False None 0 False"),
        (["freeze()", FORK], "True None 0 True"),
        (["x = 1", ("between", FORK)], "False None 0 False"),
    ],
)
def test_a_forked_child_knows_what_was_at_the_fork_and_looks_at_nothing(driver_double, cells, said):
    driver_double.write(gpu(0))
    numbered = [one if isinstance(one, tuple) else (n, one) for n, one in enumerate(cells, 1)]
    out = driver_double.python(KERNEL, stdin=json.dumps({"cells": numbered}))
    lines = out.splitlines()
    assert lines[0] == said
    assert json.loads(lines[1])["forked_frozen"] is None


def test_a_worker_of_multiprocessing_inherits_what_was_at_its_fork(driver_double, tmp_path):
    driver_double.write(gpu(0))
    code = """
import ctypes, multiprocessing
from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellWatch
watch = CellWatch(Launch.of_this_process())
context = multiprocessing.get_context("fork")
def ask(queue):
    queue.put(watch.history().forked_frozen)
watch.begin(1, "")
for frozen in (False, True):
    if frozen:
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    queue = context.SimpleQueue()
    worker = context.Process(target=ask, args=(queue,))
    worker.start()
    print(queue.get())
    worker.join()
print(watch.end().frozen_before, watch.history().forked_frozen)
"""
    assert driver_double.python(code).split() == ["False", "True", "False", "None"]


@pytest.fixture
def watch():
    made = CellWatch(Launch(os.getpid(), None), {})
    yield made
    made.close()


def test_cells_that_were_not_begun_do_not_end(watch):
    assert watch.end() is None
    watch.begin(1, "")
    watch.begin(2, "")
    assert watch.end() is None
    assert watch.end() is not None
    assert watch.end() is None


def test_two_watches_see_the_same_cells_each_for_itself(monkeypatch):
    environ = {}
    one, two = (CellWatch(Launch(os.getpid(), None), environ) for _ in range(2))
    for cell in (1, 2):
        one.begin(cell, "")
        if cell == 2:
            two.begin(1, "")
        environ[NAME] = str(cell)
        if cell == 2:
            assert two.end().change.cell == 1
        assert one.end().change.cell == cell
    one.close()
    two.close()
    assert not any(isinstance(finder, type(one._imports_watched)) for finder in sys.meta_path)


def test_threads_may_ask_while_cells_run(watch):
    asked, problems = threading.Event(), []

    def ask():
        try:
            while not asked.is_set():
                watch.history()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for cell in range(200):
        watch.begin(cell, "")
        watch._environ[NAME] = str(cell)
        sys.modules["cupy"] = types.ModuleType("cupy")
        watch._missing, watch._imported = ["cupy"], {}
        assert watch.end().change.cell == cell
    asked.set()
    for thread in threads:
        thread.join()
    del sys.modules["cupy"]
    assert problems == []


def test_a_thread_that_asks_during_an_import_leaves_it_to_be_named(play):
    modules = {
        "one": "import two",
        "two": f"import asks\n{LIBRARY}\nasks.in_thread(asks.history)",
        "asks": "",
    }
    before = "import asks; asks.in_thread = in_thread; asks.history = lambda: watch.history()"
    seen = play("import one", modules=modules, before=before)
    assert seen["frozen"]["chain"] == ["one", "two"]


def test_ten_thousand_cells_take_no_more_memory_than_a_thousand(watch):
    def cells(numbers):
        for cell in numbers:
            watch.begin(cell, "x = 1\n" * 50)
            watch._environ[NAME] = str(cell % 7)
            watch.end()

    cells(range(1000))
    tracemalloc.start()
    cells(range(1000))
    before, _ = tracemalloc.get_traced_memory()
    cells(range(10_000))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000
    assert len(watch.history().changes) == 100


def test_a_watch_that_nobody_keeps_goes_away():
    import gc
    import weakref

    made = CellWatch(Launch(os.getpid(), None), {})
    made.close()
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    if os.fork() == 0:  # what it has left for forks does nothing
        os._exit(0)
    os.wait()
