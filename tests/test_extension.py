import argparse
import subprocess
import sys
import warnings
from importlib import import_module

import pytest
from support_shell import make_shell

from jupyter_gpu.faces.extension import OPTIONS, SUBCOMMANDS

PLAIN_LOAD = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.hist_file = ":memory:"
shell = InteractiveShell.instance(config=config)
before = set(sys.modules)
shell.run_line_magic("load_ext", "jupyter_gpu")
print(sorted(name for name in set(sys.modules) - before if not name.startswith("_")))
"""


@pytest.fixture
def shell():
    with make_shell() as shell:
        yield shell


def completions(shell, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # IPython calls its own completions provisional
        return [one.text for one in shell.Completer.completions(text, len(text))]


def test_loading_gives_the_magic_and_unloading_takes_it(shell):
    assert "gpu" not in shell.magics_manager.magics["line"]
    shell.run_line_magic("load_ext", "jupyter_gpu")
    assert "gpu" in shell.magics_manager.magics["line"]
    assert "gpu" in shell.magics_manager.magics["cell"]
    shell.run_line_magic("gpu", "--json")
    shell.run_line_magic("unload_ext", "jupyter_gpu")
    assert "gpu" not in shell.magics_manager.magics["line"]
    assert "gpu" not in shell.magics_manager.magics["cell"]
    assert "who" not in completions(shell, "%gpu wh")


def test_it_can_be_loaded_again(shell):
    for _ in range(2):
        shell.run_line_magic("load_ext", "jupyter_gpu")
        shell.run_line_magic("reload_ext", "jupyter_gpu")
    assert completions(shell, "%gpu wh") == ["who"]


def test_subcommands_are_completed_and_nothing_else_is_disturbed(shell):
    shell.run_line_magic("load_ext", "jupyter_gpu")
    assert completions(shell, "%gpu s") == ["status"]
    assert set(completions(shell, "%gpu ")) == {*SUBCOMMANDS, "--json", "--help"}
    assert "status" not in completions(shell, "%gpu map st")
    assert completions(shell, "%gpu use --re") == ["--restart"]
    assert set(completions(shell, "%%gpu -")) == {"-o", "--json", "--help"}
    assert "status" not in completions(shell, "x = st")


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_options_that_are_completed_are_those_of_the_subcommand(name):
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"jupyter_gpu.faces.magics.{name}").SUBCOMMAND.add_arguments(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    assert {word for word in OPTIONS.get(name, ()) if word.startswith("-")} == known


def test_loading_imports_next_to_nothing():
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_LOAD], capture_output=True, text=True, check=True, cwd="/"
    )
    new = eval(done.stdout)
    ours = [name for name in new if name.startswith("jupyter_gpu.")]
    assert sorted(ours) == [
        "jupyter_gpu.adapters",
        "jupyter_gpu.adapters.driver",
        "jupyter_gpu.adapters.imports",
        "jupyter_gpu.adapters.launch",
        "jupyter_gpu.adapters.loaded",
        "jupyter_gpu.cell_watch",
        "jupyter_gpu.core",
        "jupyter_gpu.core.errors",
        "jupyter_gpu.core.frameworks",
        "jupyter_gpu.core.history",
        "jupyter_gpu.core.variables",
        "jupyter_gpu.faces",
        "jupyter_gpu.faces.extension",
        "jupyter_gpu.faces.hooks",
    ]
    assert {"pynvml", "torch", "ipywidgets", "jupyter_server"}.isdisjoint(new)
