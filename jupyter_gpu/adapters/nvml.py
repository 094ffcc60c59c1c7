"""The machine as NVIDIA's management library reports it.

The one module that imports ``pynvml``, and it does so only when asked to read. NVML fails in many
ways on healthy machines (no driver, an updated driver, a lost card, a container that may see half
of the GPUs), so no error of NVML leaves this module as an exception: it becomes a sentence in the
inventory.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from jupyter_gpu.adapters.nvml_gpu import Answer, GPUReader
from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.devices import Device, Inventory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from jupyter_gpu.adapters.gauge import Gauge
    from jupyter_gpu.adapters.nvml_sample import Found
    from jupyter_gpu.core.topology import Topology

_CLOSED = "This connection to NVML is closed."


class NVMLMachine:
    """A connection to NVML that reads the machine as often as wanted.

    ``nvmlInit`` runs at the first read (13 ms on an H200) and is tried again at the next one if it
    failed; ``nvmlShutdown`` runs when the ``with`` block ends. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvml: Any = None

    def __enter__(self) -> Self:
        """Load pynvml but open nothing yet: the first read does, so that entering cannot fail."""
        with contextlib.suppress(ImportError):  # the first read says so
            _import_pynvml()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shut NVML down."""
        self.close()

    def close(self) -> None:
        """Shut NVML down; may be called more than once, and a later read opens it again."""
        with self._lock:
            self._shutdown()

    def read(self, *, sensors: bool = True) -> Inventory:
        """Return what NVML reports now.

        Parameters
        ----------
        sensors
            Also read utilisation, temperature and power: about 5 ms a GPU on an H200, where all
            the rest takes under 1 ms. Leasing does without.

        Returns
        -------
        Inventory
            Source ``none`` where there is no driver library at all; source ``nvml`` with a
            ``problem`` and no devices where the library is there but fails.
        """
        with self._lock:
            failure = self._open()
            if failure is not None:
                return failure
            count = self._ask("nvmlDeviceGetCount")
            if count.code == nvml_words.UNINITIALIZED:
                # NVML counts its users per process: another library in this process has called
                # nvmlShutdown once too often, so the connection is renewed.
                self._shutdown()
                failure = self._open()
                if failure is not None:
                    return failure
                count = self._ask("nvmlDeviceGetCount")
            if count.code:
                # Dropped, so that the next read starts afresh once the driver is mended.
                self._shutdown()
                return Inventory("nvml", problem=nvml_words.machine_problem(count.code))
            return self._list(int(count.value), sensors=sensors)

    def gauge(self, uuids: Sequence[str]) -> Gauge:
        """Return what reads these devices quickly, by handles that are opened now.

        It may be used from another thread, until this machine is closed; from then on it knows
        nothing.
        """
        # Only where a cell is measured: every command imports this module.
        from jupyter_gpu.adapters.nvml_sample import NVMLGauge  # noqa: PLC0415

        with self._lock:
            failure = self._open()
        reason = _CLOSED if failure is None else failure.problem
        return NVMLGauge(self._ask_in_turn, lambda: self._find(uuids, reason or _CLOSED))

    def _find(self, uuids: Sequence[str], reason: str) -> Sequence[Found | str]:
        """Return the handles of devices; the reason for each where this machine is not open.

        Called by a gauge, at first and when NVML is down: then it is opened again, as in ``read``,
        unless it was we who closed it.
        """
        from jupyter_gpu.adapters.nvml_sample import find_handles  # noqa: PLC0415 - as above

        with self._lock:
            if self._nvml is None:
                return (reason,) * len(uuids)
            if self._ask("nvmlDeviceGetCount").code == nvml_words.UNINITIALIZED:
                self._shutdown()
                failure = self._open()
                if failure is not None:
                    return (failure.problem or reason,) * len(uuids)
            return find_handles(self._ask, uuids)

    def _ask_in_turn(self, name: str, *arguments: object) -> Answer:
        """Ask one question between those of other threads."""
        with self._lock:
            if self._nvml is None:
                return Answer(None, nvml_words.UNINITIALIZED)
            return self._ask(name, *arguments)

    def topology(self) -> Topology:
        """Return how the GPUs are connected; empty where NVML cannot be had, as ``read`` says."""
        # Only where it is asked for: every command imports this module, and few need this.
        from jupyter_gpu.adapters.nvml_topology import read_topology  # noqa: PLC0415

        with self._lock:
            return read_topology(None if self._open() is not None else self._ask)

    def _list(self, count: int, *, sensors: bool) -> Inventory:
        """Read every GPU by index: a look-up by UUID fails on all once one of them is lost."""
        devices: list[Device] = []
        hidden = 0
        for index in range(count):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle.code == nvml_words.NO_PERMISSION:
                hidden += 1
                continue
            reader = GPUReader(self._ask, index, sensors=sensors)
            devices += reader.read(handle)
        problem = nvml_words.hidden_problem(hidden, count) if count else nvml_words.NO_GPU
        return Inventory(
            "nvml",
            driver=self._ask("nvmlSystemGetDriverVersion").text,
            cuda=self._cuda_version(),
            problem=problem,
            devices=tuple(devices),
        )

    def _cuda_version(self) -> str | None:
        """Return the newest CUDA version that the driver supports, such as ``13.0``."""
        answer = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        if answer.code:
            return None
        number = int(answer.value)  # 1000 * major + 10 * minor
        return f"{number // 1000}.{number % 1000 // 10}"

    def _open(self) -> Inventory | None:
        """Load and initialise NVML unless that is done; return an inventory that says why not."""
        if self._nvml is not None:
            return None
        try:
            self._nvml = _import_pynvml()
        except ImportError:
            return Inventory("none", problem=nvml_words.NO_PACKAGE)
        code = self._ask("nvmlInit").code
        if not code:
            return None
        self._nvml = None
        return Inventory(
            "none" if code == nvml_words.LIBRARY_NOT_FOUND else "nvml",
            problem=nvml_words.machine_problem(code),
        )

    def _shutdown(self) -> None:
        """Give back our one nvmlInit; an NVML that is already down is no loss."""
        if self._nvml is not None:
            self._ask("nvmlShutdown")
            self._nvml = None

    def _ask(self, name: str, *arguments: object) -> Answer:
        """Call one function of pynvml and return its answer or its error code, never raising."""
        nvml = self._nvml
        try:
            return Answer(getattr(nvml, name)(*arguments))
        except nvml.NVMLError as error:
            return Answer(None, int(error.value))
        except (AttributeError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)):
            # An old nvidia-ml-py has no such function, as an old driver has none; a new one says of
            # an old driver's missing function that the versions do not match.
            return Answer(None, nvml_words.FUNCTION_NOT_FOUND)
        except TypeError:
            # gpustat, imported in the same process, puts a function without a version argument in
            # place of nvmlDeviceGetMemoryInfo.
            return Answer(None, nvml_words.ARGUMENT_VERSION_MISMATCH)
        except UnicodeDecodeError:
            # A name that is not text: pynvml decodes what a broken board reports.
            return Answer(None, nvml_words.UNKNOWN)


def _import_pynvml() -> Any:  # noqa: ANN401 - the package has no types
    """Import nvidia-ml-py's module, silently.

    The deprecated PyPI package ``pynvml``, where it is installed beside nvidia-ml-py, warns at the
    first import; under ``-W error`` that would make the import fail. Filters are process-wide, so
    they are touched only for that first import.
    """
    loaded = sys.modules.get("pynvml")
    if loaded is not None:
        return loaded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("pynvml")
