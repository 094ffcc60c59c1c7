"""torch's own reading of the variable, compared with torch over the double of NVML."""

import json
import sys
from pathlib import Path

import pytest
from doubles import gpu
from doubles.fixtures import driver_double, driver_libraries

from jupyter_gpu.core.torch_values import torch_count

__all__ = ["driver_double", "driver_libraries"]

TABLE = json.loads((Path(__file__).parent / "data" / "driver_visibility.json").read_text())
UUIDS = tuple(TABLE["uuids"])
OTHERS = ("", "GPU-", "MIG-1", "-", "+1", "1,,0", "GPU-2b1f,GPU-2b1f70", "١", "0,²")
# device_count() itself is skipped: the build without CUDA answers 0 before it counts.
ASK = """
import json, os, sys
import torch
answers = []
for value in json.load(sys.stdin):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    try:
        count = torch.cuda._device_count_nvml()
        answers.append(None if count < 0 else count)
    except ValueError:
        answers.append("error")
print(json.dumps(answers))
"""


def ours(value):
    found = torch_count(value, UUIDS)
    return "error" if found.error is not None else found.count


@pytest.mark.slow
def test_every_value_is_counted_as_torch_counts_it(driver_double):
    pytest.importorskip("torch")
    driver_double.write(*(gpu(index, uuid=uuid) for index, uuid in enumerate(UUIDS)))
    values = [*(row["value"] for row in TABLE["rows"]), *OTHERS]
    answers = json.loads(driver_double.run(sys.executable, "-c", ASK, stdin=json.dumps(values)))
    assert dict(zip(values, answers, strict=True)) == {value: ours(value) for value in values}


@pytest.mark.parametrize(
    ("value", "torch", "driver"),
    [
        (UUIDS[0].upper(), 0, 1),
        (f"{UUIDS[0]} ", 0, 1),
        (UUIDS[0].replace("-", "").replace("GPU", "GPU-"), 0, 1),
        (UUIDS[0], 1, 1),
        ("1,0", 2, 2),
        ("0,7,1", 1, 1),
    ],
)
def test_where_it_differs_from_the_driver(value, torch, driver):
    rows = {row["value"]: len(row["devices"]) for row in TABLE["rows"]}
    assert torch_count(value, UUIDS).count == torch
    assert rows.get(value, driver) == driver


def test_unset_means_all_and_without_gpus_it_is_not_known():
    assert torch_count(None, UUIDS).count == 2
    assert torch_count(None, ()).count is None
    assert torch_count("", ()).count == 0


def test_a_bare_sign_is_an_error():
    assert torch_count("0,+", UUIDS).error.startswith("ValueError")
