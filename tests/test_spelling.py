import pytest

from jupyter_gpu.core.spelling import did_you_mean, is_misspelt


@pytest.mark.parametrize(
    ("word", "hint"),
    [("stat", "'status'"), ("STATUS", "'status'"), ("instal", "'install'"), ("xyzzy", "")],
)
def test_the_nearest_name_is_offered(word, hint):
    said = did_you_mean(word, ("status", "install", "who"))
    assert hint in said
    assert bool(said) == bool(hint)


@pytest.mark.parametrize(
    ("name", "slip"),
    [
        ("CUDA_VISIBLE_DEVICES", False),
        ("CUDA_VISABLE_DEVICES", True),
        ("CUDA_VISIBLE_DEVICE", True),
        ("cuda_visible_devices", True),
        ("CUDA_VISIBLE", True),
        ("CUDA_VISBLE_DEVICES", True),
        ("CUDAVISIBLEDEVICES", True),
        ("UDA_VISIBLE_DEVICES", True),
        ("CUDA_VISIBLE_DEVICES_SAVED", False),
        ("OLD_CUDA_VISIBLE_DEVICES", False),
        ("HIP_VISIBLE_DEVICES", False),
        ("TPU_VISIBLE_DEVICES", False),
        ("CUDA_DEVICE_ORDER", False),
        ("PATH", False),
    ],
)
def test_only_slips_in_that_name_count(name, slip):
    assert is_misspelt(name, "CUDA_VISIBLE_DEVICES") is slip
