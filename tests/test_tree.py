"""The shape of the source: sizes, import arrows, and a test file for every module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jupyter_gpu"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}

MODULE_LINES = 400
FUNCTION_LINES = 60

# Modules at the top of the package that are faces: their names are fixed from outside, or they
# show or try the whole. Every other module there is a service.
FACES_AT_THE_TOP = {
    "jupyter_gpu": "the Python interface, which loads what it offers when it is asked for",
    "jupyter_gpu.__main__": "python -m jupyter_gpu",
    "jupyter_gpu.cli": "the entry point of the command",
    "jupyter_gpu.demo": "the demonstration",
    "jupyter_gpu.kernel": "the wrapper, by the name that kernelspecs hold",
    "jupyter_gpu.magic": "the extension of IPython",
    "jupyter_gpu.provisioner": "the entry point of the kernel provisioner",
    "jupyter_gpu.server": "the extension of the server",
    "jupyter_gpu.testing": "the fakes",
    "jupyter_gpu.widget": "the widget",
}
MAY_IMPORT = {
    "core": {"core"},
    "adapters": {"core", "adapters"},
    "service": {"core", "adapters", "service"},
    "faces": {"core", "adapters", "service", "faces"},
}
ONLY_IN = {
    "pynvml": {"jupyter_gpu.adapters.nvml"},
    "jupyter_server": {name for name in MODULES if name.endswith(".server")},
    "ipywidgets": {name for name in MODULES if name.endswith(".widget")},
    "anywidget": {name for name in MODULES if name.endswith(".widget")},
}
NOT_IN_CORE = {"os", "time", "subprocess", "socket", "fcntl", "shutil", "tempfile", "logging"}
NOT_AT_IMPORT = ("pynvml", "IPython", "ipywidgets", "jupyter_server", "tornado", "torch")

# Modules without a test file of their own, and why that is right.
TESTED_ELSEWHERE = {
    "jupyter_gpu.core.variables": "names only, used by every other test",
    "jupyter_gpu.adapters.nvml_gpu": "test_nvml reads every GPU through it",
    "jupyter_gpu.faces.magics.context": "test_magic reads every answer through it",
    "jupyter_gpu.faces.magics.subcommand": "an abstract class, which every subcommand's test uses",
    "jupyter_gpu.faces.monitor_tree": "test_widget and test_monitor_kernel look at its widgets",
    "jupyter_gpu.core.nvml_words": "test_nvml provokes every error of its table",
}


def layer(module):
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in ("core", "adapters", "faces"):
        return parts[1]
    top = ".".join(parts[:2])
    return "faces" if top in FACES_AT_THE_TOP else "service"


def imports(module):
    """Every module that a module imports anywhere, inside functions too, with its line."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(start if node.level else ()), *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if whole in MODULES else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if called in ("import_module", "__import__"):
                yield node.lineno, node.args[0].value


def docstrings(tree):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node) is not None:
            yield node.body[0].value


@pytest.fixture(params=MODULES)
def module(request):
    return request.param


def test_a_module_is_short_and_says_why_it_exists(module):
    lines = MODULES[module].read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MODULE_LINES
    assert ast.get_docstring(TREES[module])


def test_its_functions_are_short(module):
    long = [
        f"{node.name} at line {node.lineno}"
        for node in ast.walk(TREES[module])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert long == []


def test_it_has_no_bare_except(module):
    bare = [
        node.lineno
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert bare == []


def test_it_imports_only_from_lower_layers(module):
    allowed = MAY_IMPORT[layer(module)]
    upward = [
        f"line {line}: {name}"
        for line, name in imports(module)
        if name.startswith("jupyter_gpu.") and layer(name) not in allowed
    ]
    assert upward == []


def test_packages_that_cost_or_touch_something_have_one_home(module):
    strays = [
        f"line {line}: {name}"
        for line, name in imports(module)
        if module not in ONLY_IN.get(name.partition(".")[0], {module})
    ]
    assert strays == []


def test_the_core_asks_neither_the_clock_nor_the_system(module):
    asked = {name.partition(".")[0] for _, name in imports(module)} & NOT_IN_CORE
    if layer(module) == "core":
        assert asked == set()


def test_only_the_driver_module_touches_libcuda(module):
    spoken = set(docstrings(TREES[module]))
    loads = any(name.partition(".")[0] in ("ctypes", "cffi") for _, name in imports(module))
    named = [
        node.lineno
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "libcuda" in node.value
        and node not in spoken
    ]
    if loads and named:
        assert module == "jupyter_gpu.adapters.driver"


def test_it_has_a_test_file(module):
    if MODULES[module].name == "__init__.py":
        pytest.skip("a package's own file")
    has_one = (ROOT / "tests" / f"test_{module.rpartition('.')[2]}.py").exists()
    assert has_one != (module in TESTED_ELSEWHERE)


def test_the_exceptions_name_modules_that_exist():
    assert TESTED_ELSEWHERE.keys() <= MODULES.keys()


def test_importing_the_package_imports_nothing_heavy():
    code = f"import sys, jupyter_gpu; print([m for m in {NOT_AT_IMPORT} if m in sys.modules])"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert child.stdout.strip() == "[]"


@pytest.mark.parametrize("script", ["scripts/setup", "scripts/demo", "scripts/test", ".ci/run"])
def test_the_scripts_can_be_run_and_are_bash(script):
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", path], check=True)
