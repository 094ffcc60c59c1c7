"""Section D: fork and launchers."""

from situations.rows import CVD, Row, said, setting, shows, silent

IN_A_CHILD = """
import os
read, write = os.pipe()
child = os.fork()
if child == 0:
    try:
        text = repr(get_ipython().run_line_magic("gpu", ""))
        get_ipython().run_cell("x = 1", store_history=True)
        os.write(write, text.encode())
    finally:
        os._exit(0)
os.close(write)
print(os.read(read, 10000).decode() + str(os.waitpid(child, 0)[1]))
"""
WORKERS = """
import multiprocessing, os
context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""

ROWS = (
    Row(
        "B45",
        standins=("torch",),
        cells=(
            *silent("import torch", "torch.cuda.is_initialized()", "torch.cuda.is_available()"),
            *shows("torch.cuda.is_initialized()", "False"),
            *shows("%gpu", "CUDA is frozen: cell [3] (torch.cuda.is_available)"),
        ),
    ),
    Row(
        "B47",
        standins=("torch",),
        cells=(
            *silent("import torch\nok = torch.cuda.is_available()"),
            *shows(IN_A_CHILD, "forked from a kernel that had initialised CUDA", "0"),
            *silent("import torch"),
        ),
    ),
    Row(
        "B47",
        part="still open",
        cells=shows(IN_A_CHILD, "forked from a kernel in which CUDA was still open"),
    ),
    Row(
        "B48",
        standins=("tensorflow",),
        environ={CVD: "0"},
        cells=(
            *silent("import tensorflow as tf\nfound = tf.config.list_physical_devices()"),
            *shows(WORKERS, "[1, 2]"),
            *said(setting("1"), "cell [1] (tf.config.list_physical_devices)"),
        ),
    ),
)
