"""Section A: the environment set too late, or not at all."""

from situations.rows import CVD, Row, said, setting, shows, silent

IN_VAIN = "changes nothing in this kernel"
AVAILABLE = "import torch\ntorch.cuda.is_available()"

ROWS = (
    Row(
        "B06",
        standins=("kornia",),
        cells=(
            *silent("import kornia"),
            *said(setting("32"), 'now "32"', IN_VAIN, "cell [1] (import kornia) initialised CUDA"),
            *shows("%gpu", "CUDA is frozen: cell [1] (import kornia)", "import kornia initialises"),
        ),
    ),
    Row(
        "B08",
        standins=("xformers",),
        cells=(
            *silent("import xformers.ops"),
            *shows("%gpu", "(import xformers.ops)", "It has a context on cuda:0."),
            *said(setting("3"), IN_VAIN, "cell [1] (import xformers.ops)"),
        ),
    ),
    Row(
        "B09",
        standins=("compiler",),
        cells=(
            *silent("import compiler_stack"),
            *shows("%gpu", "CUDA is open"),
            *silent("import compiled_model"),
            *shows("%gpu", "CUDA is frozen: cell [3] (import compiled_model)"),
        ),
    ),
    Row(
        "B14",
        standins=("torch",),
        environ={CVD: "1"},
        cells=(
            *silent(AVAILABLE),
            *said(
                setting(""),
                IN_VAIN,
                "cell [1] (torch.cuda.is_available)",
                "cuda:0 = physical 1",
                "torch.cuda.device_count()",
            ),
            *shows("%gpu", 'launched with "1"; set now ""; in force physical 1'),
        ),
    ),
    Row(
        "B15",
        part="before",
        standins=("torch",),
        cells=(
            *silent(setting(""), "import torch"),
            *shows("%gpu", "No GPU on purpose", "CUDA is open", without=("Traceback", "error")),
        ),
    ),
    Row(
        "B15",
        part="after",
        standins=("torch",),
        cells=(*silent(AVAILABLE), *said(setting(""), IN_VAIN, "cell [1]", "cuda:3 = physical 3")),
    ),
    Row(
        "B16",
        environ={"CUDA_VISIBLE": "1"},
        cells=(
            *shows("%gpu", f'CUDA does not read "CUDA_VISIBLE": did you mean {CVD}?'),
            *shows("%gpu check", "CUDA_VISIBLE", f"did you mean {CVD}?"),
        ),
    ),
    Row(
        "B17",
        environ={"CUDA_VISABLE_DEVICES": "0"},
        cells=shows("%gpu", f'"CUDA_VISABLE_DEVICES": did you mean {CVD}?'),
    ),
    Row(
        "B17",
        part="in a cell",
        cells=(
            *said(
                'import os\nos.environ["CUDA_VISIBLE_DEVICE"] = "0"',
                f'CUDA does not read "CUDA_VISIBLE_DEVICE": did you mean {CVD}?',
            ),
            *said("%env CUDA_VISABLE_DEVICES=0", f"did you mean {CVD}?"),
        ),
    ),
    Row(
        "B19",
        standins=("jax",),
        cells=(
            *silent("import jax", setting("1")),
            *shows("%gpu", "CUDA is open", "JAX was imported in cell [1]", "cuda:0 = physical 1"),
            *silent("jax.devices()"),
            *said(setting("2"), IN_VAIN, "cell [4] (jax.devices)", "cuda:0 = physical 1"),
        ),
    ),
    Row(
        "B21",
        environ={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"},
        ours=("--gpus=1",),
        cells=(
            *shows(
                "import os\nsorted(n for n in os.environ if n.endswith('MEM_FRACTION'))",
                "['XLA_PYTHON_CLIENT_MEM_FRACTION']",
            ),
            *silent("%gpu limit 30%"),
            *shows(
                "sorted(n for n in os.environ if n.endswith('MEM_FRACTION'))",
                "['XLA_PYTHON_CLIENT_MEM_FRACTION']",
            ),
        ),
    ),
    Row(
        "B22",
        standins=("tensorflow",),
        cells=(
            *silent("import tensorflow as tf"),
            *silent("tf.config.set_logical_device_configuration(0, [])"),
            *silent("found = tf.config.list_logical_devices()"),
            *said(
                "tf.config.set_logical_device_configuration(0, [])",
                "once per kernel",
                fails=True,
            ),
        ),
    ),
    Row(
        "B23",
        standins=("cupy",),
        environ={CVD: "2,3"},
        cells=(
            *silent("import cupy\nx = cupy.zeros(3)"),
            *said(setting("0"), IN_VAIN, "cuda:0 = physical 2, cuda:1 = physical 3"),
            *shows("%gpu", "cuda:0 = physical 2", "cuda:1 = physical 3", "in force physical 2, 3"),
        ),
    ),
)
