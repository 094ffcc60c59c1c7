"""The layer that touches the world: NVML, libcuda, the lock file, /proc."""
