"""The rows of section A that need more than cells: a compiled extension, memory seen by NVML."""

import subprocess
import sysconfig

from doubles import gpu

from situations.rows import Row, setting

GIB = 2**30
# An extension module whose loading initialises CUDA: a static constructor, as C++ libraries have.
EXTENSION = """
#include <Python.h>
int cuInit(unsigned);
__attribute__((constructor)) static void wake(void) { cuInit(0); }
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "some_extension", 0, -1, 0};
PyMODINIT_FUNC PyInit_some_extension(void) { return PyModule_Create(&definition); }
"""


def an_extension_that_wakes_cuda(world):
    """Seen whatever the framework: only the driver is asked."""
    source = world.folder / "some_extension.c"
    source.write_text(EXTENSION)
    (world.folder / "wrapping.py").write_text("import some_extension\n")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    libraries = str(world.double.libraries)
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source)),
            *("-o", str(world.folder / f"some_extension{suffix}")),
            *(f"-L{libraries}", "-l:libcuda.so.1", f"-Wl,-rpath,{libraries}"),
        ],
        check=True,
    )
    world.double.write(*(gpu(n) for n in range(4)))
    with world.kernel() as kernel:
        kernel.run(f"import sys; sys.path.insert(0, {str(world.folder)!r})")
        assert kernel.run("import wrapping").hints == []
        said = kernel.run(setting("2")).hint
        assert "changes nothing in this kernel" in said
        assert "cell [2] (import wrapping, which imports some_extension)" in said


def an_import_that_runs_an_operation(world):
    """The holder list shows this kernel, and how not to take all the memory."""
    world.double.write(*(gpu(n) for n in range(4)))
    with world.kernel(
        standins=("jax",), ours=("--gpus=1",), environ={"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    ) as kernel:
        assert kernel.run("import modelzoo").hints == []
        taken = {"pid": kernel.pid, "memory_bytes": 100 * GIB}
        full = gpu(0, processes=[taken], memory_used_bytes=100 * GIB)
        world.double.write(full, *(gpu(n) for n in range(1, 4)))
        answer = kernel.run("%gpu").answer
        assert "100.0 GiB here" in answer
        assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in answer
        assert "cell [1] (import modelzoo)" in answer
        assert f"pid {kernel.pid}" in kernel.run("%gpu who").answer


ROWS = (
    Row("B07", play=an_extension_that_wakes_cuda),
    Row("B20", play=an_import_that_runs_an_operation),
)
