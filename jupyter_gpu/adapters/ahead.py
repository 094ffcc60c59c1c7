"""A machine that is being read already while the program still loads the rest of itself.

The driver library spends most of a read waiting for the cards (on two H200s 13 ms to open and 8 ms
to read). A command that runs for a tenth of a second has other work to do meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.machine import Machine
from jupyter_gpu.core.devices import Inventory

if TYPE_CHECKING:
    from jupyter_gpu.adapters.gauge import Gauge
    from jupyter_gpu.core.topology import Topology


class AheadMachine:
    """Begins to read a machine at once, sensors included, and closes it at the end of the ``with``.

    Parameters
    ----------
    machine
        The machine, not opened yet; nobody else may use it.
    """

    def __init__(self, machine: Machine) -> None:
        # Entered here and not in the thread: loading is work, which two threads only share; what
        # is worth a thread is the waiting that follows.
        self._machine = machine.__enter__()
        self._inventory: Inventory | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="read-machine", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._inventory = self._machine.read()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error

    def __enter__(self) -> AheadMachine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the reading, unless something went wrong, and close the machine."""
        if error is None:
            self._thread.join()
            self._machine.__exit__(kind, error, traceback)

    def read(self, *, sensors: bool = True) -> Inventory:  # noqa: ARG002 - it has begun with them
        """Return the inventory, as soon as it is there.

        Raises
        ------
        SimulationError
            When a simulated machine cannot be read.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._inventory is not None, "read, or an error"
        return self._inventory

    def gauge(self, uuids: Sequence[str]) -> Gauge:
        """Return what reads these devices, made after the inventory."""
        self._thread.join()
        return self._machine.gauge(uuids)

    def topology(self) -> Topology:
        """Return how the GPUs are connected, read after the inventory."""
        self._thread.join()
        return self._machine.topology()
