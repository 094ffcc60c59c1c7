"""Section B: numbering and order."""

from doubles import gpu

from situations.rows import CVD, Row, shows, silent

GIB = 2**30
MIXED = (
    gpu(0, name="NVIDIA L4", speed=1, utilization_percent=7),
    gpu(1, name="NVIDIA H200", speed=9, utilization_percent=93),
)
LOADED = tuple(
    gpu(n, utilization_percent=10 + n, memory_used_bytes=(n + 1) * GIB) for n in range(4)
)
TENSOR = "import torch\nx = torch.ones(3).cuda()"


def index_follows_uuid(world):
    """The same UUIDs, their indices permuted between two reads."""
    machine = [gpu(n) for n in range(4)]
    world.double.write(*machine)
    with world.kernel(ours=("--gpus=1", "--devices=2", "--identifiers=uuid")) as kernel:
        assert "cuda:0 = physical 2" in kernel.run("%gpu").answer
        world.double.write(machine[2], machine[3], machine[0], machine[1])
        after = kernel.run("%gpu").answer
    assert "cuda:0 = physical 0" in after
    assert "1 of 4 GPUs is yours" in after


def process_on_the_right_card(world):
    """MIX2 in CUDA's own order: cuda:0 is the fast card, which NVML numbers 1."""
    world.double.write(*MIXED)
    with world.kernel(standins=("torch",)) as kernel:
        kernel.run(TENSOR)
        process = {"pid": kernel.pid, "memory_bytes": 3 * GIB}
        fast = gpu(1, name="NVIDIA H200", speed=9, processes=[process], memory_used_bytes=3 * GIB)
        world.double.write(MIXED[0], fast)
        rows = kernel.run("%gpu").result.splitlines()
    (first,) = [row for row in rows if "cuda:0 =" in row]
    assert "physical 1" in first
    assert "3.0 GiB here" in first


ROWS = (
    Row("B25", play=index_follows_uuid),
    Row("B26", play=process_on_the_right_card),
    Row(
        "B28",
        gpus=MIXED,
        environ={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        ours=("--gpus=1",),
        cells=(
            *shows("import os\nos.environ['CUDA_DEVICE_ORDER']", "PCI_BUS_ID"),
            *shows("%gpu", "CUDA_DEVICE_ORDER was FASTEST_FIRST; the lease has set PCI_BUS_ID"),
        ),
    ),
    Row("B29", gpus=LOADED, environ={CVD: "1"}, cells=shows("%gpu", "cuda:0 = physical 1", "11 %")),
    Row(
        "B31",
        gpus=LOADED,
        environ={CVD: "2,3"},
        cells=shows("%gpu", "cuda:0 = physical 2 H200 3.0 of", "cuda:1 = physical 3 H200 4.0 of"),
    ),
    Row(
        "B33",
        gpus=tuple(gpu(n) for n in range(12)),
        environ={CVD: "10,11"},
        cells=(
            *shows("%gpu", "cuda:0 = physical 10", "cuda:1 = physical 11"),
            *silent("import json"),
        ),
    ),
)
