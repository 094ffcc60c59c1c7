import pytest
from support_cli import device, inventory, lease, uuid
from support_failures import case, flat

from jupyter_gpu.core.asked_ids import Asked
from jupyter_gpu.core.history import Change, Frozen, History, Imported
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.wrong_id import elsewhere_view, wrong_id_view

IDS = "device_ids={}"
CALL = "DataParallel(model, device_ids={})"


def parallel(*ids):
    return Asked(ids, IDS, CALL, listed=True)


def one(number, spelling="cuda:{}"):
    return Asked((number,), spelling)


def shown(asked, value, **changes):
    given = tuple(map(int, value.split(","))) if value else ()
    changes = {"state": "frozen", "in_force": given, **changes}
    return flat(wrong_id_view(case("device id", value=value, **changes), asked))


def test_the_answer_then_the_map_and_the_call_that_works():
    found = case("device id", value="1,2", state="frozen", in_force=(1, 2))
    assert as_text(wrong_id_view(found, [parallel(1, 2)])) == (
        "device_ids=[1, 2]: this kernel sees 2 devices, so ids are 0 and 1.\n"
        "Physical 2 is cuda:1 here.\n"
        "  0 = physical 1 · 1 = physical 2      →  DataParallel(model, device_ids=[0, 1])"
    )


@pytest.mark.parametrize(
    ("asked", "value", "words"),
    [
        (parallel(1), "0", "device_ids=[1]: this kernel sees 1 device, so the only id is 0."),
        (parallel(1), "0", "→ DataParallel(model, device_ids=[0])"),
        (parallel(2, 3), "2,3", "Physical 2 is cuda:0, physical 3 is cuda:1 here."),
        (parallel(3, 2), "2,3", "→ DataParallel(model, device_ids=[1, 0])"),
        (parallel(0, 1, 2), "1,0", "→ DataParallel(model, device_ids=[0, 1])"),
        (one(3), "1,3", "cuda:3: this kernel sees 2 devices, so ids are 0 and 1."),
        (one(3), "1,3", "Physical 3 is cuda:1 here. 0 = physical 1 · 1 = physical 3 → cuda:1"),
        (one(2, "set_device({})"), "2", "set_device(2): this kernel sees 1 device"),
        (one(2, "set_device({})"), "2", "→ set_device(0)"),
        (one(9), "2,1,0", "cuda:9: this kernel sees 3 devices, so ids are 0 to 2."),
    ],
)
def test_ids_count_the_visible_devices(asked, value, words):
    assert words in shown([asked], value)


def test_a_single_id_that_fits_nothing_is_not_guessed():
    assert "→" not in shown([one(9)], "2,1")
    assert "→ cuda:0" in shown([one(9)], "2")


def test_who_has_the_device_that_was_meant_is_named():
    text = shown([one(3)], "0", leases=[lease("b", (3,), "bob")])
    assert "Physical 3 is not visible in this kernel (held by bob (expb.ipynb))." in text
    assert "Physical 3 is not visible in this kernel (free)." in shown([one(3)], "0")
    assert "Physical 9" not in shown([one(9)], "0")


def test_what_cannot_have_been_wrong_is_passed_over():
    assert shown([one(0), one(1), parallel(2)], "3,1").startswith("device_ids=[2]: this kernel")


def test_an_unknown_id_still_gets_the_map():
    text = shown([], "3,1")
    assert text == (
        "That device id is not here: this kernel sees 2 devices, so ids are 0 and 1. "
        "0 = physical 3 · 1 = physical 1"
    )


def test_the_map_of_an_open_or_simulated_kernel_is_called_what_it_is():
    assert "CUDA is open here" in shown([one(3)], "1,3", state="open", in_force=None)
    simulated = shown([one(3)], "1,3", state="simulated", in_force=None)
    assert "simulated machine" in simulated
    assert "No CUDA is behind simulated devices" in simulated


def test_without_any_visible_device_that_is_the_answer():
    text = shown([one(0)], "-1", in_force=())
    assert text.startswith('cuda:0: no GPU is visible: CUDA_VISIBLE_DEVICES is "-1"')
    assert shown([], "-1", in_force=()).startswith("No GPU is visible")


def test_an_id_that_is_right_by_cuda_and_wrong_by_the_variable():
    history = History(
        (Imported("torch", "torch", "2.13.0", 1),),
        Frozen(2, call="torch.cuda.is_available"),
        (Change(3, "0,1", "1", "os.environ"),),
    )
    text = shown([parallel(0, 1)], "1", launched="0,1", in_force=(0, 1), history=history)
    assert text.startswith(
        'CUDA_VISIBLE_DEVICES is now "1", but that changes nothing in this kernel: '
        "cell [2] (torch.cuda.is_available) initialised CUDA, and since then "
        "cuda:0 = physical 0, cuda:1 = physical 1. "
        "torch.cuda.device_count() says 1, which is stale; it is 2."
    )


@pytest.mark.parametrize("asked", [[], [one(0)]])
def test_a_late_change_is_not_blamed_for_an_id_that_cannot_be_read(asked):
    history = History(
        (Imported("torch", "torch", "2.13.0", 1),),
        Frozen(2, call="torch.cuda.is_available"),
        (Change(3, "0,1", "1", "os.environ"),),
    )
    text = shown(asked, "1", launched="0,1", in_force=(0, 1), history=history)
    assert text == (
        "That device id is not here: this kernel sees 2 devices, so ids are 0 and 1. "
        "0 = physical 0 · 1 = physical 1"
    )


def test_many_devices_and_many_ids_stay_within_the_lines():
    machine = inventory(*(device(n) for n in range(16)))
    value = ",".join(map(str, range(16)))
    text = shown([parallel(*range(16, 40))], value, machine=machine)
    assert text.startswith("device_ids=[16, 17, 18")
    assert "ids are 0 to 15." in text


def test_parts_of_a_gpu_are_not_taken_for_its_number():
    part = device(1, kind="mig", parent=uuid(0), profile="1g.18gb")
    machine = inventory(device(0, mig_mode=True), part)
    text = shown([one(1)], "1", machine=machine)
    assert "0 = part of physical 1 → cuda:0" in text
    assert "Physical 1" not in text


def test_the_library_that_asked_is_named():
    assert "Raised inside transformers." in shown([one(3)], "0", libraries=["transformers"])


MESSAGE = (
    "module must have its parameters and buffers on device {} (device_ids[0]) "
    "but found one of them on device: {}"
)


def test_a_model_that_is_elsewhere():
    found = case(
        "model elsewhere",
        MESSAGE.format("cuda:1", "cuda:0"),
        "3,2",
        state="frozen",
        in_force=(3, 2),
    )
    assert flat(elsewhere_view(found)) == (
        "Part of the model is on cuda:0 (physical 3); device_ids begins with cuda:1 (physical 2). "
        'Move all of it there before the call: model.to("cuda:1") '
        "or begin with where it is: device_ids=[0, 1]"
    )
    text = flat(elsewhere_view(case("model elsewhere", MESSAGE.format("cuda:0", "cpu"), "3,2")))
    assert text.startswith(
        "Part of the model is on the CPU; device_ids begins with cuda:0 (physical 3)."
    )
    assert elsewhere_view(case("model elsewhere", "something else")) is None
