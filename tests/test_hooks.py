"""The hooks in a real shell: they note every cell, and never get in its way."""

import os
import sys
import types

import pytest
from IPython.core.interactiveshell import ExecutionResult
from support_cli import kernel, overview
from support_shell import make_shell

from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellEnd
from jupyter_gpu.core.history import Change
from jupyter_gpu.faces.hooks import CellHooks, _counts_ahead

LATE = overview(value="1", process=kernel(launched="0", now="1", state="frozen", in_force=(0,)))
CHANGE = CellEnd(Change(1, "0", "1", "%env"), frozen_before=True)
NOTHING = CellEnd(None, frozen_before=False)


class Watch:
    """Stands for CellWatch: notes what it is told, answers what it was given."""

    def __init__(self):
        self.launch = Launch(os.getpid(), None)
        self.failure = None
        self.ends = NOTHING
        self.told = []
        self.closed = 0
        self.deep = 0

    def begin(self, cell, source):
        self.deep += 1
        self.told.append((cell, source))
        self.fail("begin")

    def end(self, stopped_at=None):
        self.deep -= 1
        self.told.append(("end", stopped_at))
        self.fail("end")
        return None if self.deep else self.ends

    def close(self):
        self.closed += 1
        self.fail("close")

    failing = ()

    def fail(self, where):
        if where in self.failing:
            raise OSError(f"in {where}")


@pytest.fixture
def shell():
    with make_shell() as shell:
        yield shell


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def hooks(shell, watch):
    made = CellHooks(shell, watch, lambda: pytest.fail("the machine was read"))
    made.register()
    yield made
    made.unregister()


def run(shell, *cells):
    return [shell.run_cell(cell, store_history=True) for cell in cells]


def test_every_cell_is_noted_with_the_number_that_it_is_shown_with(shell, watch, hooks):
    results = run(shell, "x = 1", "y = 2\n", "1 / 0", "def (", "x")
    numbers = [cell for cell, _ in watch.told if cell != "end"]
    assert numbers == [1, 2, 3, 4, 5]
    assert numbers == [result.execution_count for result in results]
    assert [source for cell, source in watch.told if cell == 2] == ["y = 2\n"]
    assert watch.deep == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"store_history": False}, [(None, "x = 1"), ("end", None)]),
        ({"silent": True}, []),
        ({"silent": True, "store_history": True}, []),
    ],
)
def test_a_cell_without_a_number_has_none_and_a_silent_one_is_not_told(
    shell, watch, hooks, options, told
):
    shell.run_cell("x = 1", **options)
    assert watch.told == told
    run(shell, "y = 1")
    assert watch.told[len(told)] == (1, "y = 1")


@pytest.mark.parametrize("empty", ["", " ", "\n\n"])
def test_an_empty_cell_is_nothing_though_ipython_tells_of_its_end(shell, watch, hooks, empty):
    run(shell, empty, "x = 1", empty)
    assert [cell for cell, _ in watch.told] == [1, "end"]


@pytest.mark.parametrize(
    ("cell", "stopped_at"),
    [
        ("x = 1", None),
        ("x = 1\ny = 2\n1 / 0\nz = 3", 3),
        ("\n\nx = 1\n1 / 0", 2),
        ("def f():\n    1 / 0\n\nf()", 4),
        ("raise SystemExit(3)", 1),
        ("raise KeyboardInterrupt", 1),
        ("def (", 0),
        ("%nothing_like_this", 1),
        ("import json\njson.loads('{')", 2),
        ("await f()", 1),
        ("import asyncio\nawait asyncio.sleep(0)\n1 / 0", 3),
    ],
)
@pytest.mark.filterwarnings("ignore:To exit")  # IPython's own word on SystemExit
def test_the_line_at_which_a_cell_stopped_is_told(shell, watch, hooks, cell, stopped_at):
    run(shell, cell)
    assert watch.told[-1] == ("end", stopped_at)
    assert watch.deep == 0


@pytest.mark.parametrize(
    "cell",
    [
        "get_ipython().run_cell('1 / 0')",
        "get_ipython().run_cell('x = 1', store_history=False)",
        "get_ipython().run_cell('')",
        "get_ipython().run_cell('get_ipython().run_cell(\"x = 1\")')",
        "%%capture\nx = 1",
        "%%time\nx = 1",
        "%time x = 1",
        "get_ipython().run_cell('raise SystemExit')",
    ],
)
def test_cells_inside_a_cell_begin_and_end_within_it(shell, watch, hooks, cell):
    run(shell, cell, "after = 1")
    assert watch.deep == 0
    assert watch.told[0] == (1, cell)
    assert watch.told[-1] == ("end", None)
    assert "after = 1" in watch.told[-2]


def test_a_script_that_is_run_belongs_to_its_cell(shell, watch, hooks, tmp_path):
    (tmp_path / "script.py").write_text("x = 1")
    (tmp_path / "script.ipy").write_text("x = 1\n%time y = 2")
    run(shell, f"%run {tmp_path / 'script.py'}", f"%run {tmp_path / 'script.ipy'}")
    assert [cell for cell, _ in watch.told if isinstance(cell, int)] == [1, 2]
    assert watch.deep == 0


def test_a_cell_that_ends_without_a_result_has_ended(shell, watch, hooks):
    shell.events.trigger("post_run_cell", None)
    assert watch.told == []
    info = types.SimpleNamespace(store_history=True, raw_cell="x = 1")
    shell.events.trigger("pre_run_cell", info)
    shell.events.trigger("post_run_cell", None)
    assert watch.told[-1] == ("end", 0)
    assert watch.deep == 0


def test_a_cell_whose_inner_one_has_not_ended_ends_both(shell, watch, hooks):
    outer, inner = (
        types.SimpleNamespace(store_history=True, raw_cell=text) for text in ("outer", "inner")
    )
    ended = types.SimpleNamespace(info=outer, error_before_exec=None, error_in_exec=None)
    late = types.SimpleNamespace(info=inner, error_before_exec=None, error_in_exec=None)
    hooks.pre_run_cell(outer)
    hooks.pre_run_cell(inner)
    hooks.post_run_cell(ended)
    assert watch.deep == 0
    hooks.post_run_cell(late)
    assert watch.deep == 0


def test_what_there_is_to_say_is_shown_below_what_the_cell_has_shown(shell, watch, capsys):
    hooks = CellHooks(shell, watch, lambda: LATE)
    hooks.register()
    watch.ends = CHANGE
    run(shell, "print('its own output')\n'its value'", "print('it fails')\n1 / 0")
    hooks.unregister()
    out = capsys.readouterr().out
    parts = ["its own output", "its value", "that changes nothing", "it fails", "ZeroDivisionError"]
    places = [out.index(part) for part in parts]
    assert places == sorted(places)
    assert out.count("that changes nothing in this kernel") == 2
    assert out.rindex("that changes nothing") > out.rindex("ZeroDivisionError")


def test_a_hint_on_an_inner_cell_is_not_captured_with_its_output(shell, watch, capsys):
    hooks = CellHooks(shell, watch, lambda: LATE)
    hooks.register()
    raised = "from torch_like import fail\nfail()"
    module = types.ModuleType("torch.cuda")
    code = compile(
        "def fail(): raise RuntimeError('CUDA error: invalid device ordinal')", "x", "exec"
    )
    exec(code, module.__dict__)
    sys.modules["torch_like"] = module
    try:
        run(shell, f"%%capture kept\n{raised}")
    finally:
        del sys.modules["torch_like"]
        hooks.unregister()
    out = capsys.readouterr().out
    assert "this kernel sees 1 device" in out


@pytest.mark.parametrize(
    "cell", ["x = 1", "1 / 0", "CUDA_VISIBLE_DEVICES = 1", "# CUDA_VISABLE_DEVICES", "def ("]
)
def test_nothing_is_shown_and_no_machine_read_where_there_is_nothing_to_say(
    shell, watch, hooks, capsys, cell
):
    run(shell, cell)
    said = capsys.readouterr()
    assert "jupyter_gpu" not in said.out + said.err
    assert "jupyter_gpu no longer" not in said.err


def test_under_a_cell_in_a_forked_child_nothing_is_shown(shell, watch, hooks, capsys):
    watch.launch = Launch(-1, None)
    watch.ends = CHANGE
    run(shell, "x = 1", "raise RuntimeError('CUDA error: invalid device ordinal')")
    assert "changes nothing" not in capsys.readouterr().out


def machine_fails():
    raise OSError("in read")


@pytest.mark.parametrize("where", ["begin", "end", "read", "failure"])
@pytest.mark.parametrize("also", [(), ("close",)])
def test_what_fails_in_the_hooks_is_said_once_and_the_cells_go_on(
    shell, watch, capsys, where, also
):
    hooks = CellHooks(shell, watch, machine_fails)
    hooks.register()
    watch.failing = (where, *also)
    watch.ends = CHANGE if where == "read" else NOTHING
    watch.failure = OSError("in failure") if where == "failure" else None
    results = run(shell, "x = 41", "x += 1", "x")
    assert [result.success for result in results] == [True] * 3
    assert results[-1].result == 42
    said = capsys.readouterr()
    assert said.err.count("jupyter_gpu no longer watches this kernel's cells") == 1
    assert f"(OSError: in {where})" in said.err
    assert "%reload_ext jupyter_gpu" in said.err
    assert "Error in callback" not in said.out
    assert "Traceback" not in said.out + said.err
    assert watch.closed == 1
    for event in ("pre_run_cell", "post_run_cell"):
        assert not any(
            isinstance(getattr(one, "__self__", None), CellHooks)
            for one in shell.events.callbacks[event]
        )
    watch.failing = ()


def test_an_error_that_cannot_be_told_is_no_error_of_the_cell(
    shell, watch, hooks, capsys, monkeypatch
):
    class Unspeakable(Exception):
        def __str__(self):
            raise ValueError

    watch.failure = Unspeakable()
    assert run(shell, "x = 1")[0].success
    assert "cells (Unspeakable)." in capsys.readouterr().err
    hooks.register()
    monkeypatch.setattr(sys, "stderr", None)
    hooks.post_run_cell(types.SimpleNamespace())
    assert not any(hooks.post_run_cell == one for one in shell.events.callbacks["post_run_cell"])


def test_after_a_reload_the_cells_are_watched_again(shell, capsys):
    shell.run_line_magic("load_ext", "jupyter_gpu")
    gate = shell.magics_manager.magics["line"]["gpu"].__self__
    gate._watch._imports_watched.failure = OSError("in an import")
    run(shell, "x = 1", "x = 2")
    assert capsys.readouterr().err.count("no longer watches") == 1
    shell.run_line_magic("reload_ext", "jupyter_gpu")
    run(shell, "import os", "os.environ['CUDA_VISIBLE_DEVICES'] = '0-1'")
    gate = shell.magics_manager.magics["line"]["gpu"].__self__
    assert [change.after for change in gate._watch.history().changes] == ["0-1"]
    run(shell, "del os.environ['CUDA_VISIBLE_DEVICES']")
    assert "no longer watches" not in capsys.readouterr().err


def test_loading_unloading_and_reloading_in_a_cell_leave_nothing_behind(shell):
    before = {name: list(hooks) for name, hooks in shell.events.callbacks.items()}
    finders = list(sys.meta_path)
    run(shell, "%load_ext jupyter_gpu\nx = 1", "x = 2")
    run(shell, "%reload_ext jupyter_gpu\nx = 3", "import colorsys")
    run(shell, "get_ipython().run_cell('%reload_ext jupyter_gpu')", "x = 4")
    gate = shell.magics_manager.magics["line"]["gpu"].__self__
    assert gate._watch._inside == 0
    run(shell, "%unload_ext jupyter_gpu", "x = 5")
    assert {name: list(hooks) for name, hooks in shell.events.callbacks.items()} == before
    assert sys.meta_path == finders


class Notice:
    """Stands for IdleNotice: notes when it waits, and when it is told to stop that."""

    def __init__(self):
        self.told = []

    def cell_begins(self):
        self.told.append("begins")

    def cells_end(self):
        self.told.append("end")

    def close(self):
        self.told.append("close")


@pytest.fixture
def notice(shell, watch):
    notice = Notice()
    made = CellHooks(shell, watch, lambda: pytest.fail("the machine was read"), notice)
    made.register()
    yield notice
    made.unregister()


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("x = 1", ["begins", "end"]),
        ("1 / 0", ["begins", "end"]),
        ("def (", ["begins", "end"]),
        ("await f()", ["begins", "end"]),
        ("", []),
        ("get_ipython().run_cell('x = 1')", ["begins", "begins", "end"]),
        ("get_ipython().run_cell('1 / 0')", ["begins", "begins", "end"]),
        ("get_ipython().run_cell('')", ["begins", "end"]),
        ("get_ipython().run_cell('raise SystemExit')", ["begins", "begins", "end"]),
    ],
)
@pytest.mark.filterwarnings("ignore:To exit")  # IPython's own word on SystemExit
def test_idleness_begins_when_the_outermost_cell_has_ended(shell, watch, notice, cell, told):
    run(shell, cell)
    assert notice.told == told


class Listener:
    """Notes what it is told of the cells."""

    def __init__(self, failing=False):
        self.told, self.failing = [], failing

    def cell_begins(self, number):
        self.told.append(number)
        if self.failing:
            raise OSError("in a listener")

    def cells_end(self):
        self.told.append("end")


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("x = 1", [1, "end"]),
        ("1 / 0", [1, "end"]),
        ("def (", [1, "end"]),
        ("", []),
        ("%%capture\nx = 1", [1, "end"]),
        ("get_ipython().run_cell('x = 1')", [1, "end"]),
        ("get_ipython().run_cell('1 / 0')", [1, "end"]),
        ("get_ipython().run_cell('raise SystemExit')", [1, "end"]),
    ],
)
@pytest.mark.filterwarnings("ignore:To exit")  # IPython's own word on SystemExit
def test_listeners_are_told_of_the_outermost_cells(shell, watch, hooks, cell, told):
    one, other = Listener(), Listener()
    hooks.tell(one)
    hooks.tell(other)
    run(shell, cell)
    assert one.told == other.told == told
    shell.run_cell("x = 1", store_history=False)
    assert one.told == [*told, None, "end"]


def test_a_listener_of_the_cell_that_runs_is_told_of_it_at_once(shell, watch, hooks):
    late = Listener()
    shell.push({"hooks": hooks, "late": late})
    run(shell, "x = 1", "hooks.tell(late); early = list(late.told)")
    assert shell.user_ns["early"] == [2]
    assert late.told == [2, "end"]


def test_in_the_cell_that_loads_the_hooks_a_listener_is_told_of_it(shell, watch):
    listener = Listener()
    made = CellHooks(shell, watch, lambda: pytest.fail("the machine was read"))
    shell.push({"hooks": made, "listener": listener})
    inner = "get_ipython().run_cell('y = 1')"
    run(shell, f"hooks.register(); hooks.tell(listener); {inner}; told = list(listener.told)")
    try:
        assert shell.user_ns["told"] == [1], "the cell inside it is none of its own"
        assert listener.told == [1, "end"]
        run(shell, "x = 1")
        assert listener.told == [1, "end", 2, "end"]
    finally:
        made.unregister()


def test_a_silent_cell_is_none_for_a_listener_that_it_brings(shell, watch, hooks):
    listener = Listener()
    shell.push({"hooks": hooks, "listener": listener})
    shell.run_cell("hooks.tell(listener)", silent=True)
    assert listener.told == []
    run(shell, "x = 1")
    assert listener.told == [1, "end"]


def test_a_cell_that_loads_the_hooks_and_ends_without_a_result_has_ended(shell, watch, hooks):
    listener = Listener()
    info = types.SimpleNamespace(store_history=False, raw_cell="x = 1", silent=False)
    shell.displayhook.exec_result = ExecutionResult(info)
    hooks.tell(listener)
    shell.displayhook.exec_result = None
    assert listener.told == [None]
    shell.events.trigger("post_run_cell", None)
    assert listener.told == [None, "end"]


def test_a_listener_that_raises_is_told_no_more_and_the_others_are(shell, watch, hooks, capsys):
    bad, good = Listener(failing=True), Listener()
    hooks.tell(bad)
    hooks.tell(good)
    assert [one.success for one in run(shell, "x = 1", "x = 2")] == [True, True]
    assert bad.told == [1]
    assert good.told == [1, "end", 2, "end"]
    said = capsys.readouterr().err
    assert (
        said == "jupyter_gpu no longer follows the cells for a monitor (OSError: in a listener).\n"
    )


def test_when_the_hooks_go_in_the_midst_of_a_cell_it_has_ended_for_listeners(
    shell, watch, hooks, capsys
):
    listener = Listener()
    hooks.tell(listener)
    shell.push({"hooks": hooks})
    run(shell, "hooks.unregister()", "x = 1")
    assert listener.told == [1, "end"]


def test_hooks_that_are_off_tell_nothing_of_idleness_either(shell, watch, notice, capsys):
    watch.failing = ("end",)
    run(shell, "x = 1", "x = 2")
    assert notice.told == ["begins", "close"]
    assert capsys.readouterr().err.count("no longer watches") == 1


def test_stopping_twice_does_nothing_more(shell, watch, hooks):
    hooks.unregister()
    hooks.unregister()
    run(shell, "x = 1")
    assert watch.told == []


class CountsAfter:
    execution_count = 4

    async def run_cell_async(self, raw_cell, store_history=False):
        self.execution_count += 1


class CountsBefore:
    execution_count = 4

    async def run_cell_async(self, raw_cell, store_history=False):
        execution_count = self.execution_count
        self.execution_count += 1
        return execution_count


class CountsBeforeForAFunction:
    execution_count = 4

    async def run_cell_async(self, raw_cell, store_history=False):
        execution_count = self.execution_count

        def shown():
            return execution_count

        self.execution_count += 1
        return shown


class Wraps(CountsBefore):
    async def run_cell_async(self, *arguments, **options):
        return await super().run_cell_async(*arguments, **options)


class Inherits(CountsAfter):
    pass


@pytest.mark.parametrize(
    ("kind", "ahead"),
    [
        (CountsAfter, 0),
        (CountsBefore, 1),
        (CountsBeforeForAFunction, 1),
        (Wraps, 1),
        (Inherits, 0),
        (object, 0),
    ],
)
def test_it_is_known_whether_a_shell_counts_a_cell_before_it_runs(kind, ahead):
    assert _counts_ahead(kind()) == ahead
