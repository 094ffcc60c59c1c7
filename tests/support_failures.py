"""What the tests of explained errors share: a kernel with an error, and views as one line."""

import types

from support_cli import inventory, kernel, overview

from jupyter_gpu.core.failure_case import Case
from jupyter_gpu.core.failures import Failure
from jupyter_gpu.core.render_text import as_text

INSTALLED = object()


def seen(value="1,2", *, launched=INSTALLED, machine=None, leases=(), **changes):
    """An overview of four GPUs by a kernel, open with this value unless told otherwise."""
    others = {name: changes.pop(name) for name in ("seen", "leasing") if name in changes}
    process = kernel(launched=value if launched is INSTALLED else launched, now=value, **changes)
    return overview(machine or inventory(), leases, value=value, process=process, **others)


def case(kind, message="", value="1,2", *, framework="torch", libraries=(), **changes):
    """An error of a kind, in such a kernel."""
    found = seen(value, **changes)
    return Case(Failure(kind, message, framework, tuple(libraries)), found, found.process)


def flat(view):
    """The text of a view as one line; each of its lines fits the terminal."""
    text = as_text(view)
    assert all(len(line) <= 80 or "/" in line for line in text.split("\n")), text
    assert "!" not in text.replace("!=", "")
    return " ".join(text.split())


def module(name, text, **names):
    """A module of this name that was made from a text, as a library's file would be."""
    made = types.ModuleType(name)
    vars(made).update(names)
    exec(compile(text, f"/site-packages/{name.replace('.', '/')}.py", "exec"), vars(made))
    return made


def run(text, **names):
    """Run a text as a cell's and return the exception that it ends with."""
    try:
        exec(compile(text, "<cell>", "exec"), {"__name__": "__main__", **names})
    except BaseException as error:
        return error
    return None
