"""A cell below a magic, in a real shell."""

import pytest
from support_shell import make_shell

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.faces.inner_cell import InnerCell


@pytest.fixture
def shell():
    with make_shell() as shell:
        shell.register_magic_function(lambda line, cell: run(shell, cell), "cell", "inner")
        yield shell


def run(shell, cell):
    inner = InnerCell(shell, cell)
    ran = inner.run()
    if ran.failure is not None:
        inner.fail(ran.failure)


def cell(shell, code):
    return shell.run_cell(f"%%inner\n{code}", store_history=True)


def test_it_runs_in_the_persons_namespace_and_shows_the_last_value(shell, capsys):
    result = cell(shell, "x = 20\ndef f():\n    return x + 1\nf() + 1")
    assert (result.success, result.result) == (True, 22)
    assert shell.user_ns["x"] == 20
    assert shell.user_ns["_"] == 22
    assert "Out[1]: 22" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("interactivity", "code", "shown"),
    [
        ("last_expr", "1\n2", ["2"]),
        ("last_expr", "1\n2;", []),
        ("last_expr", "1\nx = 2", []),
        ("last_expr", "for x in [1]: x", []),
        ("last", "1\nfor x in [3]: x", ["3"]),
        ("all", "1\n2", ["1", "2"]),
        ("none", "1\n2", []),
        ("last_expr_or_assign", "1\nx = 2", ["2"]),
        ("last_expr_or_assign", "x = 1\nx += 4", ["5"]),
        ("last_expr_or_assign", "x: int = 6", ["6"]),
        ("last_expr_or_assign", "x = y = 2", []),
        ("last_expr_or_assign", "import os", []),
        ("last_expr", "# nothing", []),
        ("last_expr", "\n\n", []),
    ],
)
def test_it_shows_what_ipython_would(shell, capsys, interactivity, code, shown):
    shell.ast_node_interactivity = interactivity
    assert cell(shell, code).success
    values = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if line]
    assert values == shown


def test_magics_transformers_and_future_imports_work_in_it(shell, capsys):
    assert cell(shell, "%env FOO_OF_THE_TEST").success is False
    capsys.readouterr()
    assert cell(shell, "%%capture kept\nprint(1)").success
    assert shell.user_ns["kept"].stdout == "1\n"
    assert cell(shell, "from __future__ import annotations\ndef f(a: b): ...").success
    assert shell.user_ns["f"].__annotations__ == {"a": "b"}


def test_an_error_ends_the_cell_and_is_shown_once_without_frames_above_it(shell, capsys):
    result = cell(shell, "\nx = 1\ndef f():\n    return 1 / 0\nf()")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    said = capsys.readouterr().out
    assert said.count("ZeroDivisionError: division by zero") == 1
    assert "line 6\n" in said  # as the reader counts: the magic's line, then a blank one
    assert "line 5, in f()" in said
    assert "inner_cell.py" not in said
    assert "run_cell_magic" not in said
    assert "interactiveshell.py" not in said


def test_the_same_error_raised_by_a_later_cell_shows_that_cell(shell, capsys):
    cell(shell, "try:\n    raise ValueError(1)\nexcept ValueError as error:\n    kept = error")
    cell(shell, "raise kept")
    capsys.readouterr()
    shell.run_cell("def again(): raise kept\nagain()", store_history=True)
    assert "in again()" in capsys.readouterr().out


def test_an_error_that_refuses_attributes_is_shown_all_the_same(shell, capsys):
    code = """
class Stubborn(Exception):
    def __setattr__(self, name, value):
        raise TypeError(name)
raise Stubborn("no")
"""
    assert type(cell(shell, code).error_in_exec).__name__ == "Stubborn"
    assert "Stubborn: no" in capsys.readouterr().out


def test_an_error_that_shows_itself_still_does(shell, capsys):
    code = """
class Own(Exception):
    def _render_traceback_(self):
        return ["my own words"]
raise Own
"""
    cell(shell, code)
    assert capsys.readouterr().out.strip() == "my own words"


def test_an_interrupt_and_an_exit_are_what_they_are(shell, capsys):
    assert isinstance(cell(shell, "raise KeyboardInterrupt").error_in_exec, KeyboardInterrupt)
    with pytest.warns(UserWarning, match="To exit"):
        assert isinstance(cell(shell, "raise SystemExit(3)").error_in_exec, SystemExit)
    capsys.readouterr()


def test_await_at_the_top_level_is_refused_before_anything_runs(shell):
    with pytest.raises(UsageError, match="cannot measure a cell with await"):
        InnerCell(shell, "x = 5\nimport asyncio\nawait asyncio.sleep(0)")
    assert "x" not in shell.user_ns
    assert cell(shell, "import asyncio\nasync def f():\n    await asyncio.sleep(0)").success


def test_wrong_syntax_is_found_before_anything_runs(shell):
    for code in ("y = 5\nx = = 1", "y = 5\nreturn 1"):
        with pytest.raises(SyntaxError):
            InnerCell(shell, code)
    assert "y" not in shell.user_ns


def test_it_takes_the_time_of_the_cell_alone(shell):
    shell.user_ns["clock"] = __import__("time").perf_counter
    ran = InnerCell(shell, "began = clock()\nwhile clock() < began + 0.02: pass").run()
    assert 0.02 <= ran.seconds < 10
    assert ran.failure is None
