"""The watch of imports: it names the one that did it, and imports go on as without it."""

import copy
import importlib
import importlib.machinery
import importlib.util
import pickle
import re
import subprocess
import sys
import sysconfig
import threading
import traceback
import types
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from doubles.builder import compiler

from jupyter_gpu.adapters.imports import ImportWatch

FREEZE = "from freezing import freeze\n"


class World:
    """Modules in a folder; ``freezing.freeze()`` stands for what initialises CUDA."""

    def __init__(self, folder):
        self.folder = folder
        self.frozen = False
        self.looks = 0
        self.watch = ImportWatch(self._look)

    def _look(self):
        self.looks += 1
        return self.frozen

    def freeze(self):
        self.frozen = True

    def write(self, **modules):
        """Write modules: ``pkg__sub="text"`` is pkg/sub.py, ``pkg="…"`` with others below it a package."""
        for name, text in modules.items():
            place = self.folder.joinpath(*name.split("__"))
            package = any(other.startswith(f"{name}__") for other in modules)
            path = place / "__init__.py" if package else place.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(FREEZE + text)
        importlib.invalidate_caches()

    def run(self, text):
        """Run a cell, watched, and return the chain."""
        self.watch.start()
        try:
            exec(compile(text, "<cell>", "exec"), {"freeze": self.freeze, "__name__": "cell"})
        finally:
            self.watch.stop()
        return self.watch.chain


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path)
    freezing = types.ModuleType("freezing")
    freezing.freeze = made.freeze
    before = dict(sys.modules)
    monkeypatch.setitem(sys.modules, "freezing", freezing)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield made
    made.watch.close()
    assert not any(finder is made.watch for finder in sys.meta_path)
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.path_importer_cache.pop(str(tmp_path), None)


CHAINS = {
    "a module": ({"one": "freeze()"}, "import one", ("one",)),
    "four levels down": (
        {"one": "import two", "two": "import three", "three": "import four", "four": "freeze()"},
        "import one",
        ("one", "two", "three", "four"),
    ),
    "in the middle of them": (
        {"one": "import two", "two": "import three\nfreeze()", "three": ""},
        "import one",
        ("one", "two"),
    ),
    "before what it imports": (
        {"one": "freeze()\nimport two", "two": ""},
        "import one",
        ("one",),
    ),
    "a package, after its submodules": (
        {"pack": "from pack import sub\nfreeze()", "pack__sub": ""},
        "import pack",
        ("pack",),
    ),
    "a module below a package": (
        {"pack": "", "pack__sub": "", "pack__sub__leaf": "freeze()"},
        "import pack.sub.leaf",
        ("pack.sub.leaf",),
    ),
    "the package above the wanted module": (
        {"pack": "freeze()", "pack__sub": "", "pack__sub__leaf": ""},
        "import pack.sub.leaf",
        ("pack",),
    ),
    "a relative import": (
        {"pack": "from . import sub", "pack__sub": "from .leaf import x", "pack__leaf": "freeze()\nx=1"},
        "import pack",
        ("pack", "pack.sub", "pack.leaf"),
    ),
    "a function of a finished import": (
        {"one": "import two\ntwo.go()", "two": "def go(): freeze()"},
        "import one",
        ("one",),
    ),
    "what is imported by a function": (
        {"one": "def go():\n import two", "two": "freeze()"},
        "import one\none.go()",
        ("two",),
    ),
    "after an optional module that is missing": (
        {"one": "try:\n import nowhere_at_all\nexcept ImportError:\n freeze()"},
        "import one",
        ("one",),
    ),
    "after one that fails": (
        {"one": "try:\n import bad\nexcept ZeroDivisionError:\n pass\nimport two", "bad": "1/0", "two": "freeze()"},
        "import one",
        ("one", "two"),
    ),
    "one that fails after it": (
        {"one": "try:\n import bad\nexcept ZeroDivisionError:\n pass\nimport two", "bad": "freeze()\n1/0", "two": ""},
        "import one",
        ("one", "bad"),
    ),
    "in a circle": (
        {"one": "import two", "two": "import one\nfreeze()"},
        "import one",
        ("one", "two"),
    ),
    "one that puts something else in its place": (
        {"one": "import sys\nsys.modules[__name__] = object()\nfreeze()"},
        "import one",
        ("one",),
    ),
    "one that imports itself anew": (
        {"one": "import sys\nif 'again' not in sys.modules:\n sys.modules['again'] = sys\n del sys.modules['one']\n import one\n freeze()"},
        "import one",
        ("one",),
    ),
    "in a namespace package": ({"space__leaf": "freeze()"}, "import space.leaf", ("space.leaf",)),
    "import_module": (
        {"one": "freeze()"},
        "import importlib\nimportlib.import_module('one')",
        ("one",),
    ),
    "the cell, after an import": ({"one": ""}, "import one\nfreeze()", None),
    "the cell, between two imports": ({"one": "", "two": ""}, "import one\nfreeze()\nimport two", ()),
    "the cell, before an import": ({"one": ""}, "freeze()\nimport one", ()),
    "the cell, after one that failed": (
        {"bad": "1/0", "one": ""},
        "try:\n import bad\nexcept ZeroDivisionError:\n pass\nfreeze()\nimport one",
        (),
    ),
    "nothing": ({"one": "import two", "two": ""}, "import one", None),
}


@pytest.mark.parametrize("case", CHAINS)
def test_the_import_whose_code_did_it_is_named(world, case):
    modules, text, chain = CHAINS[case]
    world.write(**modules)
    assert world.run(text) == chain


def test_a_module_in_a_zip_file_is_named(world, monkeypatch):
    archive = world.folder / "some.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped.py", FREEZE + "freeze()")
    monkeypatch.syspath_prepend(archive)
    assert world.run("import zipped") == ("zipped",)


COMPILED = r"""
#include <Python.h>
static int freeze(void) { return PyRun_SimpleString("import freezing; freezing.freeze()"); }
static int run(PyObject *module) { (void)module; return AT_RUN ? freeze() : 0; }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, run}, {0, NULL}};
static struct PyModuleDef several = {
    PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_size = 0, .m_slots = slots};
static struct PyModuleDef single = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_size = -1};
PyMODINIT_FUNC PyInit_compiled(void) {
    if (AT_LOAD) freeze();
    return PHASES == 2 ? PyModuleDef_Init(&several) : PyModule_Create(&single);
}
"""


@pytest.mark.parametrize(
    ("phases", "moment"), [(1, "AT_LOAD"), (2, "AT_LOAD"), (2, "AT_RUN")]
)
def test_a_compiled_module_is_named_while_it_is_loaded_and_while_it_runs(world, phases, moment):
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        pytest.skip("no headers of Python")
    source = world.folder / "compiled.c"
    source.write_text(COMPILED)
    flags = [f"-D{name}={int(name == moment)}" for name in ("AT_LOAD", "AT_RUN")]
    target = world.folder / f"compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(
        [
            *(compiler(), "-shared", "-fPIC", f"-I{headers}", f"-DPHASES={phases}", *flags),
            *("-o", target, source),
        ],
        check=True,
    )
    world.write(one="import compiled\nimport two", two="")
    assert world.run("import one") == ("one", "compiled")


def outcome(world, text, *, watched):
    """Everything that an import leaves, and how it fails."""
    before = dict(sys.modules)
    finders = list(sys.meta_path)
    names = {"__name__": "cell"}
    failed = ""
    if watched:
        world.watch.start()
    try:
        exec(compile(text, "<cell>", "exec"), names)
    except BaseException as error:
        failed = "".join(traceback.format_exception(error)).replace(
            traceback.format_tb(error.__traceback__)[0], ""
        )
    finally:
        world.watch.close()
    new = {name: module for name, module in sys.modules.items() if name not in before}
    seen = {
        name: (
            without_addresses(repr(module)),
            type(module),
            sorted(vars(module)) if hasattr(module, "__dict__") else (),
            without_addresses(repr(getattr(module, "__spec__", None))),
            type(getattr(module, "__spec__", None)),
            type(getattr(module, "__loader__", None)),
            sorted(vars(getattr(module, "__spec__", None) or types.SimpleNamespace())),
        )
        for name, module in new.items()
    }
    assert sys.meta_path == finders
    for name in new:
        del sys.modules[name]
    return seen, failed, without_addresses(repr(names.get("said")))


def without_addresses(text):
    return re.sub(" at 0x[0-9a-f]+", "", text)


class Raises:
    def find_spec(self, name, path=None, target=None):
        if name == "forbidden":
            raise ImportError("forbidden here")


LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("one")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["one"] = module
spec.loader.exec_module(module)
said = [str(type(module)), module.x, str(type(module)), type(module.__spec__)]
"""
SAME = {
    "plain": ({"one": "import two", "two": ""}, "import one"),
    "fails": ({"one": "import two", "two": "1/0"}, "import one"),
    "fails in a function": ({"one": "def f():\n import two\nf()", "two": "raise KeyError"}, "import one"),
    "cannot be read": ({"one": "import two", "two": "x = = 1"}, "import one"),
    "is missing": ({"one": "import nowhere_at_all"}, "import one"),
    "is missing in a package": ({"pack": "", "pack__sub": ""}, "import pack.nowhere"),
    "is no package": ({"one": ""}, "import one.two"),
    "a name is missing": ({"one": "from two import x", "two": ""}, "import one"),
    "a circle": ({"one": "from two import x", "two": "from one import y\nx=1"}, "import one"),
    "a circle's attribute": ({"one": "import two", "two": "import one\none.x"}, "import one"),
    "a circle of packages": (
        {"pack": "import pack.sub", "pack__sub": "import pack\npack.sub.x"},
        "import pack",
    ),
    "chained errors": (
        {"one": "try:\n import two\nexcept Exception as e:\n raise OSError from e", "two": "1/0"},
        "import one",
    ),
    "beyond the top": ({"one": "from .. import x"}, "import one"),
    "hidden": ({"one": ""}, "import sys\nsys.modules['one'] = None\nimport one"),
    "leaves": ({"one": "raise SystemExit(3)"}, "import one"),
    "interrupted": ({"one": "raise KeyboardInterrupt"}, "import one"),
    "takes itself away": ({"one": "import sys\ndel sys.modules[__name__]"}, "import one"),
    "replaces itself": ({"one": "import sys\nsys.modules[__name__] = 5"}, "import one\nsaid = one"),
    "says its spec": ({"one": "said = repr(__spec__)"}, "from one import said"),
    "knows whether it is ready": (
        {"one": "said = __spec__._initializing"},
        "import one\nsaid = one.said, one.__spec__._initializing",
    ),
    "a namespace": ({"space__leaf": ""}, "import space.leaf\nsaid = list(space.__path__)"),
    "reload": ({"one": ""}, "import importlib, one\nsaid = repr(importlib.reload(one))"),
    "reload that fails": (
        {"one": "import builtins\nx = getattr(builtins, 'one_is_here', 0)\nbuiltins.one_is_here = 1\nif x: del builtins.one_is_here; 1/0"},
        "import importlib, one\nimportlib.reload(one)",
    ),
    "search": (
        {"one": ""},
        "import importlib.util as u\ns = u.find_spec('one')\nsaid = (repr(s), type(s), vars(s).keys())",
    ),
    "search below": (
        {"pack": "", "pack__sub": ""},
        "import importlib.util as u\ns = u.find_spec('pack.sub')\nsaid = (repr(s), type(s))",
    ),
    "loaded by hand": (
        {"one": ""},
        "import importlib.util as u\ns = u.find_spec('one')\nm = u.module_from_spec(s)\ns.loader.exec_module(m)\nsaid = repr(m), type(s)",
    ),
    "lazy": (
        {"one": "x = 1"},
        LAZY,
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_an_import_ends_as_it_would_without_us(world, case):
    modules, text = SAME[case]
    world.write(**modules)
    expected = outcome(world, text, watched=False)
    assert outcome(world, text, watched=True) == expected


def test_a_broken_compiled_module_fails_as_it_would_without_us(world):
    (world.folder / f"broken{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"")
    expected = outcome(world, "import broken", watched=False)
    assert outcome(world, "import broken", watched=True) == expected
    assert "broken" in expected[1]


def test_a_finder_that_forbids_a_module_fails_as_it_would_without_us(world, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Raises(), *sys.meta_path])
    expected = outcome(world, "import forbidden", watched=False)
    assert "ImportError: forbidden here" in expected[1]
    assert outcome(world, "import forbidden", watched=True) == expected
    monkeypatch.undo()


def test_a_spec_can_be_copied_and_pickled_while_its_module_runs(world):
    world.write(
        one="import copy, pickle\ns = __spec__\nhere = isinstance(s, type(copy.__spec__))\n"
        "copied = copy.copy(s)\npickled = pickle.loads(pickle.dumps(s))\nequal = copied == s == pickled"
    )
    world.run("import one")
    one = sys.modules["one"]
    assert (type(one.copied), type(one.pickled)) == (ModuleSpec, ModuleSpec)
    assert one.here
    assert one.equal
    assert type(one.__spec__) is ModuleSpec
    assert type(pickle.loads(pickle.dumps(one.__spec__))) is ModuleSpec
    assert copy.copy(one.__spec__) == one.__spec__


class Finder:
    """Finds one module, with the spec that it is given; notes who is asked for."""

    def __init__(self, name, make):
        self.name, self.make, self.asked = name, make, []

    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
        return self.make() if name == self.name else None


class Plain:
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.x = 1


class Own(ModuleSpec):
    pass


class Lazy(importlib.util.LazyLoader):
    pass


def first(monkeypatch, *finders):
    monkeypatch.setattr(sys, "meta_path", [*finders, *sys.meta_path])


def test_a_finders_own_kind_of_spec_and_its_loader_stay_what_they_are(world, monkeypatch):
    loader = Plain()
    finder = Finder("odd", lambda: Own("odd", loader))
    first(monkeypatch, finder)
    world.run("import odd")
    assert type(sys.modules["odd"].__spec__) is Own
    assert sys.modules["odd"].__loader__ is loader
    assert finder.asked == ["odd"]


def test_a_lazy_module_keeps_sleeping_and_its_spec_is_a_plain_one(world, monkeypatch):
    world.write(sleepy="freeze()\nx = 1", other="")
    finder = Finder(
        "sleepy",
        lambda: importlib.util.spec_from_file_location(
            "sleepy",
            world.folder / "sleepy.py",
            loader=Lazy(importlib.machinery.SourceFileLoader("sleepy", str(world.folder / "sleepy.py"))),
        ),
    )
    first(monkeypatch, finder)
    assert world.run("import sleepy") is None
    module = sys.modules["sleepy"]
    assert type(object.__getattribute__(module, "__spec__")) is ModuleSpec
    assert not world.frozen
    assert world.run("import sleepy\nsleepy.x\nimport other") == ()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="gone from importlib in 3.12")
def test_a_finder_of_the_old_kind_is_still_asked_first(world, monkeypatch):
    class Old:
        def find_module(self, name, path=None):
            return self if name == "one" else None

        def load_module(self, name):
            sys.modules[name] = module = types.ModuleType(name)
            module.mine = True
            return module

    world.write(one="")
    first(monkeypatch, Old())
    with pytest.warns(ImportWarning):
        world.run("import one")
    assert sys.modules["one"].mine


def test_finders_that_come_and_go_during_an_import_are_asked_as_usual(world, monkeypatch):
    first(monkeypatch)
    late = Finder("late", lambda: ModuleSpec("late", Plain()))
    gone = Finder("late", lambda: pytest.fail("was taken away"))
    sys.modules["freezing"].late, sys.modules["freezing"].gone = late, gone
    sys.meta_path.append(gone)
    world.write(
        one="import sys, freezing\nsys.meta_path.insert(0, freezing.late)\n"
        "sys.meta_path.remove(freezing.gone)\nimport late\nfreeze()\nimport other",
        other="",
    )
    assert world.run("import one") == ("one",)
    assert sys.modules["late"].x == 1


def test_somebody_who_asks_the_finders_himself_is_answered_by_the_others(world):
    world.watch.start()
    assert world.watch.find_spec("json") is None
    assert importlib.util.find_spec("json").origin
    world.watch.stop()


def test_another_threads_imports_are_not_watched(world):
    world.write(one="import threading, freezing\nfreezing.during()", two="freeze()")

    def during():
        thread = threading.Thread(target=lambda: importlib.import_module("two"))
        looks = world.looks
        thread.start()
        thread.join()
        assert world.looks == looks
        assert type(sys.modules["two"].__spec__) is ModuleSpec

    sys.modules["freezing"].during = during
    # What it did is seen when the import that was running ends: more cannot be told.
    assert world.run("import one") == ("one",)


def test_a_thread_that_imports_while_a_cell_ends_passes_over_no_finder(world, monkeypatch):
    world.write(one="")
    arrived, go_on, found = threading.Event(), threading.Event(), []

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if threading.current_thread() is thread:
                arrived.set()
                go_on.wait(10)

    thread = threading.Thread(target=lambda: found.append(importlib.import_module("one")))
    monkeypatch.setattr(sys, "meta_path", [Slow(), importlib.machinery.PathFinder])
    world.watch.start()
    thread.start()
    assert arrived.wait(10)
    world.watch.stop()
    go_on.set()
    thread.join()
    assert [module.__name__ for module in found] == ["one"]


def test_two_watches_do_not_disturb_each_other(world):
    other = ImportWatch(lambda: world.frozen)
    world.write(one="import two", two="freeze()")
    other.start()
    try:
        world.run("import one")
        assert world.watch.chain == ("one", "two")
        assert type(sys.modules["one"].__spec__) is ModuleSpec
    finally:
        other.close()


def test_it_is_in_the_list_once_however_often_it_starts_and_gone_after_closing(world):
    before = list(sys.meta_path)
    for _ in range(3):
        world.watch.start()
        world.watch.start()
        world.watch.stop()
        world.watch.stop()
    assert sys.meta_path == [world.watch, *before]
    world.watch.close()
    world.watch.close()
    assert sys.meta_path == before


def test_stopped_it_looks_at_nothing_and_once_it_knows_it_looks_no_more(world):
    world.write(one="", two="", three="freeze()", four="")
    world.watch.start()
    world.watch.stop()
    importlib.import_module("one")
    assert world.looks == 0
    world.run("import three\nimport four")
    looks = world.looks
    world.run("")
    assert world.looks == looks
    assert world.watch.chain is None


def test_a_look_that_fails_does_not_end_the_import_and_is_not_repeated(world):
    calls = []

    def fails():
        calls.append(1)
        raise OSError("no look")

    watch = ImportWatch(fails)
    world.write(one="import two", two="")
    watch.start()
    try:
        importlib.import_module("one")
    finally:
        watch.close()
    assert str(watch.failure) == "no look"
    assert calls == [1]
    assert sys.modules["two"]


def test_a_module_that_nobody_has_is_asked_for_by_the_usual_finders_only(world, monkeypatch):
    finder = Finder("x", lambda: None)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    world.run("try:\n import nowhere_at_all\nexcept ImportError:\n pass")
    # importlib asks again, since nobody can tell it that we have: no finder may mind.
    assert set(finder.asked) == {"nowhere_at_all"}
