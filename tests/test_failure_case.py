from support_cli import device, inventory, uuid
from support_failures import case

from jupyter_gpu.core.kernel_process import InForce


def test_the_map_is_the_drivers_where_it_is_known():
    frozen = case("no gpu", value="0", state="frozen", in_force=(2, 1))
    assert frozen.map_line == "0 = physical 2 · 1 = physical 1"
    assert frozen.caveat == ()
    assert frozen.named(1) == "cuda:1 (physical 1)"
    assert frozen.named(5) == "cuda:5"


def test_else_it_is_what_the_variable_means_and_says_so():
    assert case("no gpu", value="3,0").map_line == "0 = physical 3 · 1 = physical 0"
    assert case("no gpu", value="3,0").caveat == (
        'CUDA is open here: the map is read from CUDA_VISIBLE_DEVICES ("3,0").',
    )
    assert "simulated" in case("no gpu", state="simulated").caveat[0]
    assert "forked" in case("no gpu", state="forked").caveat[0]
    assert case("no gpu", state="simulated").machine == "simulated machine"
    assert case("no gpu", state="absent").rows == ()
    assert case("no gpu", state="absent").caveat == ()


def test_parts_and_unknown_devices_are_called_so():
    part = device(0, kind="mig", parent=uuid(0))
    assert case("no gpu", machine=inventory(part)).physical(InForce(0, 0, uuid(0))) == (
        "part of physical 0"
    )
    assert case("no gpu").physical(InForce(0, None, None)) == "physical unknown"


def test_the_way_through_libraries_is_named():
    assert case("no gpu").raised_inside == ()
    assert case("no gpu", libraries=["transformers"]).raised_inside == (
        "Raised inside transformers.",
    )
    assert case("no gpu", libraries=["transformers", "peft", "accelerate"]).raised_inside == (
        "Raised inside accelerate, which transformers calls.",
    )
