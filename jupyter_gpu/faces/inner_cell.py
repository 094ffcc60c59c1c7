"""The cell below a cell magic, run as a part of the cell that the magic stands in.

IPython's ``run_cell`` inside a magic makes two cells of one: hooks run twice, an error is shown for
the inner one while the outer one ends well, and Run All goes on. Here the code runs as IPython
would run it, its error ends the cell that the reader sees, and its line numbers are that cell's.
"""

from __future__ import annotations

import ast
import contextlib
import time
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import UsageError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_AWAIT = (
    "%%gpu cannot measure a cell with await at its top level: the kernel's event loop waits for "
    "this very cell. Take %%gpu off, or move what is to be measured to a cell without await."
)


@dataclass(frozen=True, slots=True)
class Run:
    """How long a cell ran, and what ended it, None where it came to its end."""

    seconds: float
    failure: BaseException | None


class InnerCell:
    """The code of a cell, compiled when it is made.

    Parameters
    ----------
    shell
        Runs it, in the person's namespace.
    cell
        What stands below the magic's line.

    Raises
    ------
    SyntaxError
        When it cannot be compiled.
    UsageError
        When it has an ``await`` at its top level.
    """

    def __init__(self, shell: InteractiveShell, cell: str) -> None:
        self._shell = shell
        code = shell.transform_cell(cell)
        if shell.should_run_async(cell, transformed_cell=code):
            raise UsageError(_AWAIT)
        # The magic's own line comes first, and IPython has dropped blank lines at the top: with
        # them back, line numbers in a traceback are those that the reader sees.
        blank = len(cell) - len(cell.lstrip())
        code = "\n" * (1 + cell[:blank].count("\n")) + code
        name = shell.compile.cache(code, _number_of_cell(shell))
        tree = shell.transform_ast(shell.compile.ast_parse(code, filename=name))
        self._steps = tuple(
            _compiled(shell, node, name, shown=shown)
            for node, shown in _in_order(tree.body, _interactivity(shell, code))
        )

    def run(self) -> Run:
        """Run it, and return what ended it instead of raising that: an interrupt too."""
        failure, shell = None, self._shell
        began = time.perf_counter()
        try:
            for step in self._steps:
                exec(step, shell.user_global_ns, shell.user_ns)  # noqa: S102 - the person's cell
        except BaseException as error:  # noqa: BLE001 - raised again in ``fail``
            failure = error
        return Run(time.perf_counter() - began, failure)

    def fail(self, error: BaseException) -> None:
        """Raise what has ended the cell, to be shown as if no magic stood above it.

        Raises
        ------
        BaseException
            That very error.
        """
        if isinstance(error, Exception | KeyboardInterrupt):
            self._show_from_the_cell_on(error)
        raise error

    def _show_from_the_cell_on(self, error: BaseException) -> None:
        """Have IPython leave out the frames above the cell's first: its own, and ours."""
        inner = None if error.__traceback__ is None else error.__traceback__.tb_next
        if inner is None or hasattr(error, "_render_traceback_"):
            return
        shell, number = self._shell, self._shell.execution_count
        try:
            lines = _traceback_lines(shell, error, inner)
        except Exception:  # noqa: BLE001 - an error that cannot be shown so is shown as it is
            return

        def render() -> list[str]:
            """Return the lines, or afresh where the same error is raised again by a later cell."""
            if shell.execution_count == number or error.__traceback__ is None:
                return lines
            return _traceback_lines(shell, error, error.__traceback__)

        with contextlib.suppress(Exception):  # an error may refuse attributes; then it is longer
            error._render_traceback_ = render  # type: ignore[attr-defined] # IPython's own protocol


def _traceback_lines(
    shell: InteractiveShell, error: BaseException, traceback: TracebackType
) -> list[str]:
    lines: list[str] = shell.InteractiveTB.structured_traceback(
        type(error), error, traceback, tb_offset=0
    )
    return lines


def _number_of_cell(shell: InteractiveShell) -> int:
    """Return the number of the cell that runs: IPython from 9.8 on counts ahead."""
    number = getattr(shell.displayhook.exec_result, "execution_count", None)
    return int(number or shell.execution_count)


def _interactivity(shell: InteractiveShell, code: str) -> str:
    """Return which values IPython would show; a semicolon at the end means none."""
    if shell.displayhook.semicolon_at_end_of_expression(code):
        return "none"
    return str(shell.ast_node_interactivity)


def _in_order(body: list[ast.stmt], interactivity: str) -> list[tuple[ast.stmt, bool]]:
    """Return the statements, and whether the value of each is shown."""
    if not body:
        return []
    *before, last = body
    if interactivity == "last_expr_or_assign" and (name := _assigned(last)) is not None:
        body, before = [*body, name], body
        last = name
    shows_last = interactivity == "last" or (
        interactivity.startswith("last_expr") and isinstance(last, ast.Expr)
    )
    shows_all = interactivity == "all"
    return [*((node, shows_all) for node in before), (last, shows_all or shows_last)]


def _assigned(node: ast.stmt) -> ast.Expr | None:
    """Return an expression for the one name that a statement assigns to, or None."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        target = node.target
    else:
        return None
    if not isinstance(target, ast.Name):
        return None
    shown = ast.Expr(ast.Name(target.id, ast.Load()))
    return ast.fix_missing_locations(ast.copy_location(shown, node))


def _compiled(shell: InteractiveShell, node: ast.stmt, name: str, *, shown: bool) -> CodeType:
    if shown:
        compiled: CodeType = shell.compile(ast.Interactive([node]), name, "single")
    else:
        compiled = shell.compile(ast.Module([node], []), name, "exec")
    return compiled
