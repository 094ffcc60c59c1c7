"""Samples the machine in a thread of its own while something else runs.

It never holds that up: it waits only for the first reading and for the last, and for neither long.
Whatever goes wrong in the thread becomes a sentence in the recording.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpu.core.measurement import Recording, Sample, merged

if TYPE_CHECKING:
    from types import TracebackType

    from jupyter_gpu.adapters.gauge import Gauge

SHORTEST_SECONDS = 0.02
LONGEST_SECONDS = 1.0
SENSOR_SECONDS = 0.2  # NVML's own means are over a sixth of a second at least
MOST_SAMPLES = 512
PATIENCE_SECONDS = 2.0
# Of its time the sampler spends at most this part on a core, and this part inside the driver.
CPU_PART, DRIVER_PART = 1 / 50, 1 / 5
_SLOWDOWN = 500  # a cell of ten seconds is sampled every 20 ms, one of a minute every 120


@dataclass(frozen=True, slots=True)
class Cost:
    """What a reading took, on a core and on the clock."""

    cpu_seconds: float
    wall_seconds: float

    @property
    def pause_seconds(self) -> float:
        """How long to wait after it, for its part of the time to stay small."""
        return max(self.cpu_seconds / CPU_PART, self.wall_seconds / DRIVER_PART)


def pause_seconds(elapsed_seconds: float, cost: Cost) -> float:
    """Return how long to wait before the next reading: longer in long cells and after slow ones."""
    interval = min(max(elapsed_seconds / _SLOWDOWN, SHORTEST_SECONDS), LONGEST_SECONDS)
    return max(interval, cost.pause_seconds)


class Sampler:
    """Samples devices from ``start`` to ``stop``; as a context manager, while the block runs.

    Parameters
    ----------
    open_gauge
        Returns what reads the devices; called in the thread.
    count
        The number of devices; with none there is no thread.
    patience_seconds
        How long to wait for a driver that does not answer.
    most_samples
        How many samples are kept; beyond that, neighbours are merged.
    """

    def __init__(
        self,
        open_gauge: Callable[[], Gauge],
        count: int,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        most_samples: int = MOST_SAMPLES,
    ) -> None:
        self._open_gauge, self._count = open_gauge, count
        self._patience_seconds, self._most_samples = patience_seconds, most_samples
        self._ready, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: Sequence[Sample] = ()
        self._energy: list[tuple[float | None, ...]] = []
        self._energy_at: list[float] = []
        self._cell_at: float | None = None
        self._origin = self._sensors_at = self._sensors_due = 0.0
        self._reads = 0
        self._cpu_seconds: float | None = None
        self._problem: str | None = None
        self._late = False

    def start(self) -> None:
        """Begin, and return once the first reading is there."""
        if not self._count:
            return
        self._thread = threading.Thread(target=self._run, name="jupyter-gpu-sampler", daemon=True)
        self._thread.start()
        # A driver that does not answer may not hold up the cell; what it says later is no start.
        try:
            self._late = not self._ready.wait(self._patience_seconds)
        except BaseException:  # an interrupt while we wait: nobody will call stop
            self._stopped.set()
            raise
        self._cell_at = time.perf_counter()

    def stop(self) -> Recording:
        """Take a last reading, end the thread and return what was read."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(self._patience_seconds)
            if self._thread.is_alive():
                self._problem = (
                    "The driver has not answered for "
                    f"{self._patience_seconds:g} s, so the last readings are missing."
                )
        energy, at = [*self._energy, (), ()], self._energy_at
        return Recording(
            tuple(self._samples),
            () if self._late else energy[0],
            energy[1],
            self._reads,
            self._cpu_seconds,
            self._problem,
            at[1] - at[0] if len(at) == 2 else None,  # noqa: PLR2004 - before and after
            0.0 if self._cell_at is None or not self._samples else self._cell_at - self._origin,
        )

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the thread, where ``stop`` has not."""
        self.stop()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: the cell goes on
            self._problem = str(error) or type(error).__name__
        finally:
            self._ready.set()

    def _sample(self) -> None:
        gauge = self._open_gauge()
        self._origin = self._sensors_at = time.perf_counter()
        cost = self._read(gauge, sensors=True)
        self._read_energy(gauge)
        began, self._cpu_seconds = time.thread_time(), 0.0
        self._ready.set()
        while not self._stopped.wait(self._pause(cost)):
            cost = self._read(gauge, sensors=time.perf_counter() >= self._sensors_due)
            self._cpu_seconds = time.thread_time() - began
        self._read_energy(gauge)
        self._read(gauge, sensors=True)

    def _read_energy(self, gauge: Gauge) -> None:
        self._energy.append(gauge.energy_joules())
        self._energy_at.append(time.perf_counter())

    def _pause(self, cost: Cost) -> float:
        return pause_seconds(time.perf_counter() - self._origin, cost)

    def _read(self, gauge: Gauge, *, sensors: bool) -> Cost:
        """Add one sample and return what it took."""
        now, cpu = time.perf_counter(), time.thread_time()
        readings = gauge.read(sensors=sensors)
        span = now - self._sensors_at if sensors else 0.0
        samples = (*self._samples, Sample(now - self._origin, span, readings))
        self._samples = merged(samples) if len(samples) > self._most_samples else samples
        self._reads += 1
        cost = Cost(time.thread_time() - cpu, time.perf_counter() - now)
        if sensors:
            self._sensors_at = now
            self._sensors_due = now + max(SENSOR_SECONDS, 2 * cost.pause_seconds)
            # What sensors take is spread over the time to their next turn.
            return Cost(0.0, 0.0)
        return cost
