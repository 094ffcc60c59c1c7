"""The version of torch that a program's Python has, found without running it.

A kernel is about to be started with a Python that need not be this one. Asking it would take
seconds, so what its installers have written is looked for where that Python will look: first
``PYTHONPATH``, then a virtual environment's or its own installation's packages. ``.pth`` files are
not followed, and what cannot be told is None.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_PYTHON = re.compile(r"(?:python|pypy)([0-9]+(?:\.[0-9]+t?)?)?")
_FOLDER = re.compile(r"(?:python|pypy)([0-9]+(?:\.[0-9]+t?)?)")
_METADATA = re.compile(r"torch-([^-]+)(?:-py[0-9.]+)?\.(?:dist|egg)-info", re.IGNORECASE)
_VERSION = re.compile(r"(?m)^Version:[ \t]*(\S+)")
_HEAD = 64 * 1024
_CONFIG = "pyvenv.cfg"
_PACKAGES = ("site-packages", "dist-packages")
_LIBRARIES = ("lib", "lib64", "local/lib", "local/lib64")


def torch_version(executable: str, environ: Mapping[str, str]) -> str | None:
    """Return the version of torch in the Python that a program runs on.

    Parameters
    ----------
    executable
        What is started: a path, or a name that the ``PATH`` of the environment finds.
    environ
        The environment that it is started with.

    Returns
    -------
    str | None
        ``"2.13.0+cu130"``; None where there is no torch, the program is no Python, or neither
        can be told.
    """
    try:
        path = _found(executable, environ)
        return None if path is None else _version_for(path, environ)
    except (OSError, ValueError):  # a name no file can have, or a folder that cannot be read
        return None


def _found(executable: str, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the program, links and all, if it is a Python by its name."""
    if not executable:
        return None
    named = os.path.dirname(executable)  # noqa: PTH120 - whether it names a folder, as shells see it
    found = executable if named else shutil.which(executable, path=environ.get("PATH", os.defpath))
    if found is None or _PYTHON.fullmatch(Path(found).name) is None:
        return None
    return Path(os.path.abspath(found))  # noqa: PTH100 - resolve() would leave the environment


def _version_for(python: Path, environ: Mapping[str, str]) -> str | None:
    for entry in environ.get("PYTHONPATH", "").split(os.pathsep):
        # A relative one means the folder that the kernel is started in, which is not known here.
        version = _in_folder(Path(entry)) if os.path.isabs(entry) else None  # noqa: PTH117
        if version is not None:
            return version
    if str(python) == os.path.abspath(sys.executable or ""):  # noqa: PTH100 - as above
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version("torch") or None
        return None
    versions = (_in_folder(folder) for folder in _package_folders(python, environ))
    return next((version for version in versions if version is not None), None)


def _package_folders(python: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that this Python takes packages from, in its own order."""
    settings = _settings(python)
    if settings is not None:
        # The configuration stands beside the program, or one folder up.
        prefix = python.parent if (python.parent / _CONFIG).is_file() else python.parent.parent
        yield from _below(prefix, _number(python, settings))
        if settings.get("include-system-site-packages", "").lower() != "true":
            return
        python = Path(settings.get("home", ""), "python3")
        if not python.is_absolute():
            return
    number = _number(python, settings or {})
    yield from _of_the_user(number, environ)
    prefixes = (python.parent.parent, _real(python).parent.parent)
    for prefix in dict.fromkeys(prefixes):
        yield from _below(prefix, number)


def _settings(python: Path) -> dict[str, str] | None:
    """Return a virtual environment's settings, None where this Python belongs to none."""
    for folder in (python.parent, python.parent.parent):
        path = folder / _CONFIG
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            pairs = (line.partition("=") for line in lines)
            return {name.strip().lower(): value.strip() for name, _, value in pairs}
    return None


def _number(python: Path, settings: Mapping[str, str]) -> str | None:
    """Return ``"3.12"`` for a Python, None where neither a name nor a setting tells."""
    for key in ("version_info", "version"):
        found = re.match(r"[0-9]+\.[0-9]+", settings.get(key, ""))
        if found is not None:
            return found[0]
    for path in (python, _real(python)):
        named = _PYTHON.fullmatch(path.name)
        if named is not None and named[1] is not None and "." in named[1]:
            return named[1]
    return None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # resolve() fails on links in a circle


def _of_the_user(number: str | None, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folder of ``pip install --user``, which comes before the installation's own."""
    base = environ.get("PYTHONUSERBASE") or os.path.join(environ.get("HOME", ""), ".local")  # noqa: PTH118
    if not environ.get("PYTHONNOUSERSITE") and os.path.isabs(base):  # noqa: PTH117 - may be no path
        yield from _below(Path(base), number)


def _below(prefix: Path, number: str | None) -> Iterator[Path]:
    """Yield the package folders of one Python under a prefix; none where it may be any of several.

    Debian keeps packages for every version in ``lib/python3``, and what pip installs for all
    users in ``local/lib``.
    """
    found: dict[str, list[Path]] = {}
    for library in _LIBRARIES:
        with contextlib.suppress(OSError):  # there is none of that name
            for folder in sorted((prefix / library).iterdir()):
                named = _FOLDER.fullmatch(folder.name)
                if named is not None:
                    found.setdefault(named[1], []).append(folder)
    key = _key(tuple(found), number)
    if key is not None:
        for folder in (*found.get(key, ()), *found.get(key[0], ())):
            yield from (folder / name for name in _PACKAGES)


def _key(found: tuple[str, ...], number: str | None) -> str | None:
    """Return which of the versions that have a folder is meant, None where it may be several."""
    if number is not None:
        return next((key for key in (number, f"{number}t") if key in found), number)
    exact = [key for key in found if "." in key]
    return exact[0] if len(exact) == 1 else None


def _in_folder(folder: Path) -> str | None:
    """Return the version of the torch that is installed in a folder, None where there is none."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return None
    for entry in entries:
        named = _METADATA.fullmatch(entry.name)
        # A half-removed package leaves an empty folder of this name.
        if named is not None and (entry.is_file() or (entry / _metadata_name(entry)).is_file()):
            return named[1]
        if entry.name == "torch.egg-info":  # a checkout that was built in its place
            with contextlib.suppress(OSError), (entry / "PKG-INFO").open(errors="replace") as file:
                stated = _VERSION.search(file.read(_HEAD))
                return None if stated is None else stated[1]
    return None


def _metadata_name(folder: Path) -> str:
    return "METADATA" if folder.suffix == ".dist-info" else "PKG-INFO"
