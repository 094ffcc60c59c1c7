"""Section E: parsing values."""

from doubles import gpu, mig

from situations.rows import CVD, Row, said, setting, shows, silent

MIGS = (gpu(0), gpu(1, mig_mode=True, mig=[mig(slot) for slot in range(3)]))
FIRST, SECOND = (mig(slot)["uuid"] for slot in range(2))
OLD_FORM = f"MIG-{gpu(1)['uuid']}/1/0"
UNKNOWN_ERROR = (
    "raise RuntimeError('CUDA unknown error - this may be due to an incorrectly set up "
    "environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting "
    "the available devices to be zero.')"
)
# What raises it in the libraries, called torch here because hints look at where an error is from.
RAISE_IN_TORCH = (
    "import sys, types\n"
    "code = compile(" + repr(UNKNOWN_ERROR) + ", 'torch/cuda/__init__.py', 'exec')\n"
    "exec(code, {'__name__': 'torch.cuda'})"
)

ROWS = (
    Row(
        "B50",
        cells=(
            *shows('%gpu map "2, +3, -0, 5"', "cuda:0 = physical 2", "cuda:2 = physical 0", "5"),
            *shows("%gpu map 0,1,2,1", "cuInit fails with 101", "named twice"),
            *shows('%gpu map "GPU-123, 2"', "No GPU is visible", "100"),
            *shows("%gpu map one,two", "No GPU is visible", "neither a device number nor a UUID"),
            *said(setting("0,1,2,1"), "CUDA will show no GPU", "named twice"),
        ),
    ),
    Row(
        "B51",
        environ={CVD: "0-2"},
        cells=(
            *shows("%gpu", "1 of 4 GPUs is visible", "Ranges are not read by CUDA"),
            *said(setting("1-3"), "CUDA will show physical 1", "Write 1,2,3"),
        ),
    ),
    Row(
        "B53",
        part="525",
        gpus=MIGS,
        driver={"driver": "525.60.13"},
        environ={CVD: f"{FIRST},{SECOND}"},
        cells=shows("%gpu", "Only the first MIG device is used"),
    ),
    Row(
        "B53",
        part="580",
        gpus=MIGS,
        environ={CVD: f"{FIRST},{SECOND}"},
        cells=shows("%gpu", "only the driver can say", without=("Only the first MIG device is",)),
    ),
    Row(
        "B54",
        ours=("--gpus=1", "--identifiers=uuid"),
        standins=("vllm",),
        cells=(
            *silent("import vllm"),
            *shows("%gpu", "vLLM reads", "--identifiers index"),
            *said("vllm.visible()", "identifiers", "index", fails=True),
        ),
    ),
    Row(
        "B59",
        gpus=MIGS,
        cells=(
            *shows(f"%gpu map {OLD_FORM}", FIRST),
            *shows(f"%gpu map {FIRST}", FIRST, "cuda:0 = physical 1"),
        ),
    ),
    Row(
        "B60",
        gpus=MIGS,
        cells=(
            *shows("%gpu", "3 MIG devices here are not shown"),
            *shows("%gpu check", "driver", "NVML"),
        ),
    ),
    Row(
        "B61",
        environ={CVD: ""},
        cells=(
            *shows("%gpu", "No GPU is visible in this kernel", "No GPU on purpose"),
            *shows("%gpu --json", "'devices': []"),
        ),
    ),
    Row(
        "B62",
        environ={CVD: "1"},
        cells=(
            *silent("x = 1"),
            *said(RAISE_IN_TORCH, "did not change", "driver", fails=True),
        ),
    ),
)
