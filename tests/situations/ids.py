"""Section C: relative device ids, DataParallel."""

from situations.rows import CVD, Row, said, shows, silent

ROWS = (
    Row(
        "B34",
        standins=("torch",),
        ours=("--gpus=1",),
        cells=(
            *silent("import torch\nmodel = object()"),
            *said(
                "torch.nn.DataParallel(model, device_ids=[0, 1, 2, 3])",
                "this kernel sees 1 device",
                "device_ids=[0]",
                fails=True,
            ),
        ),
    ),
    Row(
        "B37",
        standins=("torch",),
        environ={CVD: "2"},
        cells=(
            *silent("import torch\nmodel = object()\nids = (1,)"),
            *said(
                "torch.nn.DataParallel(model, device_ids=ids)",
                "sees 1 device",
                "0 = physical 2",
                fails=True,
            ),
        ),
    ),
    Row(
        "B37",
        part="text",
        standins=("torch",),
        environ={CVD: "2"},
        cells=(
            *silent("import torch"),
            *said("torch.set = torch.ones(3, device='cuda:' + '1')", "sees 1 device", fails=True),
        ),
    ),
    Row(
        "B39",
        gpus=6,
        standins=("torch",),
        environ={CVD: "4,3"},
        cells=(
            *silent("import torch\nwhere = torch.device('cuda:3')"),
            *said("torch.ones(3).to(where)", "Physical 3 is cuda:1 here", fails=True),
        ),
    ),
    Row(
        "B40",
        standins=("torch",),
        environ={CVD: "2"},
        cells=(
            *silent("import os, torch"),
            *said(
                f"torch.cuda.set_device(int(os.environ['{CVD}']))",
                "Physical 2 is cuda:0 here",
                fails=True,
            ),
        ),
    ),
    Row(
        "B41",
        standins=("torch", "library"),
        environ={CVD: "1"},
        cells=(
            *silent("import trainlib"),
            *said("trainlib.prepare(rank=1)", "Raised inside trainlib", "0 = physical 1", fails=True),
        ),
    ),
    Row(
        "B43",
        gpus=6,
        environ={CVD: "3,5"},
        cells=shows("%gpu", "cuda:0 = physical 3", "cuda:1 = physical 5"),
    ),
)
