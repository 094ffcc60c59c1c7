"""The main job, for a person who watches: ``python -m jupyter_gpu.demo``.

Real kernels from the installed kernelspecs, through the provisioner, on this machine's GPUs; where
there are none to spare, on the simulated machine. Whatever it says it has checked, and when
something is not as promised it says that instead and ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from jupyter_gpu.adapters.machine import SIMULATE, find_machine, is_simulated
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import EXIT_FAILURE, GPUError, NoDeviceAvailable, RequestError
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.pool import limits_of

SIMULATION = "4xH200"
_COLUMNS = 80
_START_SECONDS = 60
_CHOICES = (("pytorch-2gpus", 2), ("pytorch-1gpu", 1))  # a kernelspec, and what it asks for

_WHAT_IT_HAS = """
import json
state = get_ipython().run_line_magic("gpu", "--json")
seen = [device["index"] for device in state["visible"]["devices"]]
print(json.dumps({"leased": (state["lease"] or {}).get("indices"), "seen": seen}))
"""


class _NotAsPromisedError(GPUError):
    """Something did not go as this demonstration says it does."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where it takes place: the kernels' environment, and devices for exactly two of them."""

    environ: Mapping[str, str]
    machine: str
    kernelspec: str
    each: int
    devices: tuple[Device, ...]
    restricted: bool

    @property
    def options(self) -> dict[str, object]:
        """What the server's configuration would say: nobody waits, nothing else is touched."""
        if not self.restricted:
            return {"wait": 0}
        whole = all(device.kind == "gpu" for device in self.devices)
        names = [device.index if whole else device.uuid for device in self.devices]
        return {"wait": 0, "devices": names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, and return the exit status."""
    about = "Show GPU leases with real kernels; without two GPUs, on a simulated machine."
    argparse.ArgumentParser("python -m jupyter_gpu.demo", description=about).parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no × still shows the rest
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-demo-") as folder:
            _run(Path(folder))
    except GPUError as error:
        _say(f"The demonstration stopped: {error}", to=sys.stderr)
        return EXIT_FAILURE
    except BrokenPipeError:  # whoever read along has left, as in  | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 130  # 128 and SIGINT's number, as shells say it
    return 0


def _run(folder: Path) -> None:
    stage = _find_stage(os.environ, folder)
    _say(stage.machine)
    with contextlib.ExitStack() as kernels:
        first, second, third = (
            kernels.enter_context(_Notebook(stage, folder / f"{name}.ipynb"))
            for name in ("first", "second", "third")
        )
        _say(f'\nTwo notebooks pick "{first.display_name}", as a person does in JupyterLab.')
        held = [_show(notebook, stage) for notebook in (first, second)]
        _require(not set(held[0]) & set(held[1]), "two kernels have a device in common.")
        _show_refusal(third, first, second)
        _say("\nfirst.ipynb is shut down, and third.ipynb is started again.")
        began = time.monotonic()
        first.shut_down()
        again = _show(third, stage)
        seconds = time.monotonic() - began
        _require(set(again) == set(held[0]), "the third kernel has not got what was given back.")
    _require_nothing_left(stage)
    _say("")
    _item(f"Two kernels had GPUs of their own: {_listed(held[0])} and {_listed(held[1])}.")
    _item("A third was refused at once, and told who holds them.")
    _item(f"A kernel's end freed its GPUs: the third had {_listed(again)} {seconds:.1f} s later.")
    _item("All kernels have ended, and no lease is left.")
    _say("\nTo use it, in the environment that Jupyter runs in:")
    _say("  pip install jupyter-gpu")
    _say(f'  jupyter lab        and pick "{first.display_name}"')


def _find_stage(environ: Mapping[str, str], folder: Path) -> _Stage:
    """Return this machine with devices to spare, or else a simulated one."""
    if is_simulated(environ):
        why = f"{SIMULATE} is set"
        return _simulated(environ[SIMULATE], why, environ, folder)
    with find_machine(environ) as machine:
        inventory = machine.read(sensors=False)
    stage = _set(environ, inventory, f"This machine has {_models(inventory)}.")
    return stage or _simulated(SIMULATION, _why_not_here(inventory), environ, folder)


def _why_not_here(inventory: Inventory) -> str:
    if inventory.driver is None:
        return "there is no NVIDIA driver here"
    if len(inventory.gpus) < 2:  # noqa: PLR2004 - one for each of two kernels
        return "this machine has fewer than two GPUs"
    return "fewer than two GPUs are free"


def _simulated(
    description: str, why: str, environ: Mapping[str, str], folder: Path
) -> _Stage:
    kept = {name: value for name, value in environ.items() if name != VISIBLE}
    # A place of its own, so that nobody else's simulated leases come into it.
    place = {"JUPYTER_GPU_LEASE_DIR": str(folder / "leases")}
    own = {**kept, SIMULATE: description, **place}
    with find_machine(own) as machine:
        inventory = machine.read(sensors=False)
    stage = _set(own, inventory, f"Simulated machine, {_models(inventory)}: {why}.")
    if stage is None:
        raise _NotAsPromisedError(f"{SIMULATE}={description} has fewer than two free devices.")
    return stage


def _set(environ: Mapping[str, str], inventory: Inventory, words: str) -> _Stage | None:
    for kernelspec, each in _CHOICES:
        # Asked only where there are so many: asking makes the lease directory.
        devices = _free(2 * each, environ) if len(inventory.devices) >= 2 * each else ()
        if devices:
            restricted = VISIBLE in environ or len(inventory.devices) > len(devices)
            return _Stage(environ, words, kernelspec, each, devices, restricted)
    return None


def _free(count: int, environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Return that many devices that can be leased now, or none."""
    request = Request.parse({"gpus": count}, default_wait=0)
    owner = Owner("api", command="python -m jupyter_gpu.demo")
    try:
        asked = Acquisition(request, owner, environ, limits=limits_of(environ))
        with acquire_now(asked) as lease:
            if not lease.exclusive:
                raise _NotAsPromisedError("GPUs cannot be leased here: the system has no locks.")
            return lease.devices
    except (NoDeviceAvailable, RequestError):
        return ()


def _models(inventory: Inventory) -> str:
    counted = Counter(gpu.name for gpu in inventory.gpus)
    return ", ".join(f"{count} × {name}" for name, count in counted.items())


class _Notebook:
    """A notebook's kernel, held as a Jupyter front end holds it. Use it in a ``with``."""

    def __init__(self, stage: _Stage, path: Path) -> None:
        from jupyter_client import KernelManager  # noqa: PLC0415 - 0.2 s, not for --help
        from jupyter_client.kernelspec import NoSuchKernel  # noqa: PLC0415
        from traitlets.config import Config  # noqa: PLC0415

        self.path, self._environ, self._client = path, stage.environ, None
        quiet = logging.Logger("demo", level=logging.CRITICAL + 1)  # noqa: LOG001 - no one else's
        configuration = Config({"GPUProvisioner": stage.options})
        self._manager: Any = KernelManager(
            kernel_name=stage.kernelspec, config=configuration, log=quiet
        )
        try:
            self.display_name: str = self._manager.kernel_spec.display_name
        except NoSuchKernel:
            raise _NotAsPromisedError(
                f"The kernelspec {stage.kernelspec!r} is not installed here: "
                "pip install jupyter-gpu"
            ) from None

    def __enter__(self) -> _Notebook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shut_down()

    def start(self) -> None:
        """Start the kernel.

        Raises
        ------
        KernelRefused
            When its devices cannot be had.
        """
        self._manager.start_kernel(
            env={**self._environ, "JPY_SESSION_NAME": str(self.path)},
            cwd=str(self.path.parent),
            # No framework is needed here, and the person's history is not for this.
            extra_arguments=["--framework=", "--HistoryManager.hist_file=:memory:"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        client = self._client = self._manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=_START_SECONDS)
        except RuntimeError as error:
            raise _NotAsPromisedError(f"{self.path.name}: {error}") from error

    def run(self, code: str) -> str:
        """Run a cell and return the text of its output."""
        assert self._client is not None, "started"
        texts: list[str] = []

        def gather(message: dict[str, Any]) -> None:
            content = message["content"]
            texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        reply = self._client.execute_interactive(code, output_hook=gather, timeout=_START_SECONDS)
        if reply["content"]["status"] != "ok":
            raise _NotAsPromisedError(f"{self.path.name}: a cell failed: {reply['content']}")
        return "".join(texts).strip()

    def shut_down(self) -> None:
        """End the kernel, if there is one, and everything that was opened for it."""
        if self._client is not None:
            self._client.stop_channels()
            self._client = None
            self._manager.shutdown_kernel()
        self._manager.cleanup_connection_file()


def _show(notebook: _Notebook, stage: _Stage) -> tuple[int, ...]:
    """Start a kernel, show what it says, and return the indices of its devices."""
    began = time.monotonic()
    notebook.start()
    seconds = time.monotonic() - began
    _say(f"\n{notebook.path.name}: its kernel is ready after {seconds:.1f} s")
    _say("In [1]: %gpu")
    _say(notebook.run("%gpu"))
    has = json.loads(notebook.run(_WHAT_IT_HAS))
    leased, allowed = has["leased"] or [], {device.index for device in stage.devices}
    _require(has["seen"] == leased, f"{notebook.path.name} sees {has['seen']}, leased {leased}.")
    _require(len(leased) == stage.each, f"{notebook.path.name} has {len(leased)} devices.")
    _require(set(leased) <= allowed, f"{notebook.path.name} has devices it did not ask for.")
    return tuple(leased)


def _show_refusal(third: _Notebook, *holders: _Notebook) -> None:
    from jupyter_gpu.faces.refused import KernelRefused  # noqa: PLC0415 - brings tornado

    _say("\nthird.ipynb picks it too, and is refused:")
    try:
        third.start()
    except KernelRefused as refused:
        _say(refused.message)
        for notebook in holders:
            _require(
                str(notebook.path) in refused.message, f"{notebook.path.name} is not named in it."
            )
    else:
        raise _NotAsPromisedError("a third kernel has started, though nothing was free.")


def _require_nothing_left(stage: _Stage) -> None:
    place = find_place(stage.environ, simulated=is_simulated(stage.environ))
    ours = {device.uuid for device in stage.devices}
    with LeaseStore(place) as store:
        left = [lease for lease in store.holdings().leases if ours & set(lease.record.uuids)]
    _require(not left, f"{in_words(len(left))} of {place.directory} are still leased.")


def _require(held: bool, otherwise: str) -> None:
    if not held:
        raise _NotAsPromisedError(otherwise)


def _listed(indices: tuple[int, ...]) -> str:
    return ", ".join(map(str, indices))


def _item(sentence: str) -> None:
    _say(f"- {sentence}")


def _say(text: str, to: TextIO | None = None) -> None:
    for line in _wrapped(text):
        print(line, file=to, flush=True)


def _wrapped(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if len(line) <= _COLUMNS:
            yield line
        else:
            further = " " * (len(line) - len(line.lstrip()) + 2)
            yield from textwrap.wrap(line, _COLUMNS, subsequent_indent=further)


if __name__ == "__main__":
    sys.exit(main())
