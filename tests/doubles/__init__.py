"""Doubles of NVIDIA's driver libraries, built from C by the tests.

``libnvidia-ml.so.1`` and ``libcuda.so.1`` report the machine in one JSON file, so that the real
nvidia-ml-py, gpustat, nvitop and torch run over it, and so does this package, unpatched. A process
finds them through ``LD_LIBRARY_PATH`` and the file through ``JUPYTER_GPU_DOUBLE``; the file is read
again whenever it changes, which is how a GPU is unplugged or a process appears.

In a test: ``from doubles.fixtures import driver_double, driver_libraries``, then
``driver_double.write(gpu(0), gpu(1))`` and ``driver_double.python("import pynvml ...")``.

The file's keys, all but ``gpus`` optional:

``driver``, ``cuda``
    versions, such as ``"580.95.05"`` and ``13000``
``gpus``
    ``uuid``, ``name``, ``pci_bus_id``, ``memory_total_bytes``, ``memory_used_bytes``,
    ``memory_reserved_bytes``, ``utilization_percent``, ``temperature_celsius``, ``power_watts``,
    ``energy_joules``
    (what is absent or null is NOT_SUPPORTED), ``compute_mode`` (NVML's number), ``minor``,
    ``display``, ``speed`` (CUDA's FASTEST_FIRST order), ``mig_mode``, ``processes``, ``mig``,
    ``errors``
    and how it is connected: ``ancestors`` (NVML's level by the other GPU's index, on one of the two),
    ``nvlinks`` (each link's far end: a GPU's index, ``"switch"``, ``"unknown"``, null if not
    active), ``p2p_status`` (NVML's number, for every pair), ``cpus`` and ``memory_nodes`` (numbers)
``processes``
    ``pid``, ``memory_bytes`` (absent: not available), ``mps`` or ``graphics`` true
``mig``
    ``uuid``, ``profile``, ``name``, ``memory_total_bytes``, ``memory_used_bytes``, ``slot``,
    ``slices``, ``compute_slices``, ``gpu_instance``, ``compute_instance``, ``processes``, ``errors``
``errors``
    function name to NVML code, on the machine, a GPU or a MIG device. A name without its version
    means every version. ``"*"`` on a GPU means every question but the handle's: a lost GPU is
    ``{"*": 15}``, a hidden one ``{"nvmlDeviceGetHandleByIndex": 4}``. On the machine, ``cuInit`` too.
``missing``
    names of functions that this driver answers FUNCTION_NOT_FOUND to
``delays_ms``
    function name to milliseconds
"""

from doubles.builder import build
from doubles.machine import DriverDouble, gpu, mig

__all__ = ["DriverDouble", "build", "gpu", "mig"]
