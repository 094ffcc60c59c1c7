"""Sequences in which nothing must be said."""

from situations.rows import CVD, Row, silent

IMPORT = "import torch"
SET = f"import os\nos.environ['{CVD}'] = '1'"
USE = "import torch\nx = torch.ones(3).cuda()"
REAL = "real torch"

# Name, stand-ins (REAL for the CPU build of torch itself), launched with, cells.
_SEQUENCES = (
    ("ordinary work", (), None, ("1 + 1", "x = [n * n for n in range(10)]", "print(x)")),
    ("the variable first, then torch", ("torch",), None, (SET, IMPORT, USE)),
    ("torch first, the variable before its use", ("torch",), None, (IMPORT, SET, USE)),
    ("real torch, then the variable", (REAL,), None, (IMPORT, SET, "torch.ones(3).sum()")),
    ("real torch asks for devices", (REAL,), "0,1", (IMPORT, "torch.cuda.is_available()", SET)),
    ("device_count leaves CUDA open", ("torch",), None, (f"{IMPORT}\ntorch.cuda.device_count()", SET)),
    ("both in one cell", ("torch",), None, (f"{SET}\nimport torch\nx = torch.ones(3).cuda()",)),
    ("changed twice while open", ("torch",), None, (IMPORT, SET, f"%env {CVD}=2", USE)),
    ("the same value once more", ("torch",), "1", (USE, SET)),
    ("the same devices by UUID", ("torch",), "1", (USE, f"%env {CVD}=GPU-bbbb2222")),
    ("changed and changed back in one cell", ("torch",), "1", (USE, f"{SET}\nos.environ['{CVD}'] = '0'\nos.environ['{CVD}'] = '1'")),
    ("no GPU on purpose", (), None, (f"%env {CVD}=-1", "import json")),
    ("no GPU on purpose, empty", (), None, (f"import os\nos.environ['{CVD}'] = ''",)),
    ("unset while open", (), "0", (f"import os\ndel os.environ['{CVD}']",)),
    ("asked for, not set", (), "0", (f"import os\nos.environ['{CVD}']", f"%env {CVD}")),
    ("named in a comment", (), "0", (f"# {CVD}=3 is for later", "y = 2")),
    ("named in a string", (), "0", (f"text = 'export {CVD}=3'", "print(text)")),
    ("given to one command", (), "0", (f"!{CVD}=1 python3 -c 'print(1)'",)),
    ("exported for the command behind it", (), "0", (f"!export {CVD}=1; python3 -c 'print(1)'",)),
    ("set for a child by its environment", (), "0", (f"import os, subprocess\nsubprocess.run(['true'], env={{**os.environ, '{CVD}': '1'}})",)),
    ("a script in bash", (), "0", (f"%%bash\nexport {CVD}=1\ntrue",)),
    ("an error of one's own", (), None, ("1 / 0", "{}['x']", "undefined", "import no_such_module")),
    ("a syntax error", (), None, ("for", "x = (")),
    ("an assertion of one's own", (), None, ("assert False, 'Invalid device'",)),
    ("a ValueError that speaks of cuda", (), None, ("raise ValueError('cuda:3 is my favourite')",)),
    ("an IndexError of a list", (), None, ("gpus = [0]\ngpus[3]",)),
    ("memory of the host runs out", (), None, ("raise MemoryError('out of memory')",)),
    ("an interrupt", (), None, ("raise KeyboardInterrupt",)),
    ("an exit", (), None, ("import sys\ntry:\n    sys.exit(1)\nexcept SystemExit:\n    print('over')",)),
    ("jax imported and used", ("jax",), "2", ("import jax", "jax.devices()", "1 + 1")),
    ("jax imported, then the variable", ("jax",), None, ("import jax", SET, "jax.devices()")),
    ("cupy imported, then the variable", ("cupy",), None, ("import cupy", SET, "cupy.zeros(3)")),
    ("a library that initialises CUDA, no change", ("kornia",), None, ("import kornia", "1 + 1")),
    ("nested cells", (), None, ("%%capture\nprint(1)", "%%time\nx = 1", "%timeit -n1 -r1 pass")),
    ("top-level await", (), None, ("import asyncio\nawait asyncio.sleep(0)", "x = 1")),
    ("threads and workers", (), None, ("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", "import subprocess\nsubprocess.run(['true'])")),
    ("a fork before CUDA", (), None, ("import os\np = os.fork()\nif p == 0: os._exit(0)\nn = os.waitpid(p, 0)",)),
    ("imports that fail", (), None, ("try:\n    import no_such_module\nexcept ImportError:\n    print('none')",)),
    ("empty cells", (), None, ("", "  \n", "# only a comment", "x = 1")),
    ("the variable inside the lease", "leased", None, (f"import os\nos.environ['{CVD}'] = os.environ['{CVD}'].split(',')[0]",)),
    ("another variable of CUDA", (), None, ("%env CUDA_LAUNCH_BLOCKING=1", "%env CUDA_HOME=/usr/local/cuda")),
    ("a saved copy of the variable", (), "1", (f"import os\nos.environ['OLD_{CVD}'] = os.environ['{CVD}']",)),
    ("%gpu itself", (), None, ("x = get_ipython().run_line_magic('gpu', '')", "%gpu -h")),
)  # fmt: skip

ROWS = tuple(
    Row(
        "quiet",
        part=name,
        standins=() if names in ("leased", (REAL,)) else names,
        ours=("--gpus=2",) if names == "leased" else None,
        environ={} if launched is None else {CVD: launched},
        cells=silent(*codes),
    )
    for name, names, launched, codes in _SEQUENCES
)
