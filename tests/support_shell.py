"""A real IPython shell for tests, which leaves nothing of itself behind."""

import atexit
import builtins
import contextlib
import sys

from IPython import version_info
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@contextlib.contextmanager
def make_shell():
    """Give a shell whose history is in memory."""
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor" if version_info >= (9,) else "NoColor"
    kept = {
        name: getattr(sys, name)
        for name in ("displayhook", "excepthook", "ps1")
        if hasattr(sys, name)
    }
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance(config=config)
    try:
        yield shell
    finally:
        if "jupyter_gpu" in shell.extension_manager.loaded:
            shell.run_line_magic("unload_ext", "jupyter_gpu")
        atexit.unregister(shell.atexit_operations)
        history = shell.history_manager
        shell.atexit_operations()
        history.db.close()
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main
        for name, value in kept.items():
            setattr(sys, name, value)
        for name in ("get_ipython", "display"):
            if hasattr(builtins, name):
                delattr(builtins, name)
