"""Examines the Python environments of this user's Jupyter servers.

A server whose environment lacks this package silently leaves out kernelspecs that name our
provisioner. Each environment is asked by its own Python, because only that knows what it imports.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpu.core.checks import Check

SERVERS = ("jupyter-lab", "jupyter-notebook", "jupyter-server", "jupyterhub-singleuser", "jupyter")
PROBE_SECONDS = 120  # the first import on a network file system can take a minute
_PROBE = """
import importlib.metadata as m, json
group = "jupyter_client.kernel_provisioners"
try:
    found = m.entry_points(group=group)
except TypeError:  # Python 3.9 and older
    found = m.entry_points().get(group, ())
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"has": "gpu-provisioner" in {e.name for e in found},
                  "client": version("jupyter_client"), "ours": version("jupyter-gpu")}))
"""
_EXEC_LINE = re.compile(r"""^'''exec' (.+?) "\$0" """)


@dataclass(frozen=True, slots=True)
class Server:
    """A Jupyter program: what it is called, and the Python that runs it, None where unknown."""

    name: str
    python: str | None


def examine_environments(environ: Mapping[str, str]) -> tuple[Check, ...]:
    """Return a check for every environment that a Jupyter server on the PATH or running has."""
    servers = (*on_the_path(environ), *running(environ))
    names: dict[str | None, list[str]] = {}
    for server in servers:
        names.setdefault(server.python, []).append(server.name)
    checks = [_check(python, ", ".join(dict.fromkeys(who))) for python, who in names.items()]
    found = tuple(check for check in checks if check is not None)
    return found or (Check("servers", "ok", "no Jupyter server on the PATH, and none is running"),)


def on_the_path(environ: Mapping[str, str]) -> Iterator[Server]:
    """Yield the Jupyter programs that the PATH finds."""
    for name in SERVERS:
        path = shutil.which(name, path=environ.get("PATH"))
        if path is not None:
            yield Server(name, interpreter_of_script(Path(path), environ))


def interpreter_of_script(script: Path, environ: Mapping[str, str]) -> str | None:
    """Return the Python that a console script runs on, from its first lines."""
    try:
        with script.open("rb") as file:
            first, second = (file.readline(4096).decode(errors="replace") for _ in range(2))
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    # Where the path is too long for the system, pip lets a shell find it in the second line.
    through_shell = _EXEC_LINE.match(second)
    try:
        words = shlex.split(through_shell[1] if through_shell else first[2:])
    except ValueError:
        return None
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
        return shutil.which(words[0], path=environ.get("PATH")) if words else None
    return words[0] if words and "python" in Path(words[0]).name else None


def running(environ: Mapping[str, str]) -> Iterator[Server]:
    """Yield this user's running servers, by the files that they leave in the runtime folder."""
    folder = _runtime_folder(environ)
    for path in sorted((*folder.glob("jpserver-*.json"), *folder.glob("nbserver-*.json"))):
        try:
            pid = int(json.loads(path.read_text(encoding="utf-8"))["pid"])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half written, not a server's, or left by a server that is gone
        if any("jupyter" in word for word in words):
            # /proc/<pid>/exe leads through a virtual environment's link: only argv names it.
            python = words[0] if "python" in Path(words[0]).name else None
            yield Server(f"server {pid}", python and shutil.which(python, path=environ.get("PATH")))


def _runtime_folder(environ: Mapping[str, str]) -> Path:
    named = environ.get("JUPYTER_RUNTIME_DIR")
    if named:
        return Path(named)
    from jupyter_core.paths import jupyter_runtime_dir  # noqa: PLC0415 - only here, and slow

    return Path(jupyter_runtime_dir())


def _check(python: str | None, who: str) -> Check | None:
    name = f"environment of {who}"
    if python is None:
        found = "cannot tell which Python runs it"
        return Check(name, "warn", found, "run  python -m pip show jupyter-gpu  there")
    answer, problem = ask(python, _PROBE)
    install = f"{shlex.quote(python)} -m pip install jupyter-gpu"
    if answer is None:
        return Check(name, "fail", f"{python} does not run: {problem}", "mend that environment")
    if answer.get("client") is None and who == "jupyter":
        return None  # a bare jupyter command: nothing there could start a kernel
    if answer.get("has"):
        return Check(name, "ok", f"{python} has jupyter-gpu {answer.get('ours') or ''}".rstrip())
    found = f"{python} lacks jupyter-gpu, so it hides kernelspecs that name gpu-provisioner"
    return Check(name, "fail", found, install)


def ask(python: str, code: str) -> tuple[dict[str, object] | None, str]:
    """Run a Python with some code; return the JSON object it prints, or None and why not."""
    try:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            check=False,
            cwd=os.sep,  # a package in the current folder is not one that a server will find
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PROBE_SECONDS,
        )
        answer = (
            json.loads(done.stdout.strip().rpartition("\n")[2]) if not done.returncode else None
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {PROBE_SECONDS} s"
    except (OSError, ValueError) as error:
        return None, str(error)
    if not isinstance(answer, dict):
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"it ended with status {done.returncode}"
    return answer, ""
