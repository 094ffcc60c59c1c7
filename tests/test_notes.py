"""Sentences for values that were meant otherwise, and silence for values that were not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.notes import pool_notes
from jupyter_gpu.core.visibility import visible

TAIL = "-5d9e-4a86-9c04-71e6a3d8f25b"


def gpu(index, first, name="NVIDIA H200", **changes):
    return Device(index, f"GPU-{first}{TAIL}", name, **changes)


def mig(first, parent):
    return Device(parent.index, f"MIG-{first}{TAIL}", "MIG", "mig", parent.uuid, profile="1g.10gb")


def machine(*devices, driver="580.159.04"):
    return Inventory("nvml", driver=driver, devices=devices)


A4 = machine(gpu(0, "aaaa1111"), gpu(1, "bbbb2222"), gpu(2, "cccc3333"), gpu(3, "dddd4444"))
ONE = machine(gpu(0, "aaaa1111"))
SLOW_FIRST = machine(gpu(0, "aaaa1111", "Tesla T4"), gpu(1, "bbbb2222", "NVIDIA H200"))
PARENT = gpu(1, "bbbb2222", mig_mode=True, problem="its MIG devices are leased, not the whole")
PARTS = (mig("11111111", PARENT), mig("22222222", PARENT), mig("33333333", PARENT))
MIG = machine(gpu(0, "aaaa1111"), PARENT, *PARTS)
ONLY_MIG = machine(PARENT, *PARTS)
LOST = machine(gpu(0, "aaaa1111", problem="fell off the bus"), gpu(1, "bbbb2222"))
NO_MACHINE = Inventory("none", problem="no NVIDIA driver here")
A, B = A4.devices[0].uuid, A4.devices[1].uuid


def notes(value, inventory=A4, environment=None):
    return visible(value, inventory, environment=environment).notes


GOOD = [None, "0", "0,1", "1,0", "3,2,1,0", "0,1,", " 0,1", "0, 1", "0,1\n", "2,+3,-0", "01"]
GOOD += [
    A,
    B,
    f"{A},{B}",
    f"{B},{A}",
    "GPU-aaaa",
    "GPU-AAAA1111",
    "GPU-" + A[4:].upper().replace("-", ""),
    f"{A} ",
]


@pytest.mark.parametrize("value", GOOD)
def test_a_good_value_gets_no_note(value):
    assert visible(value, A4).cuinit == 0
    assert notes(value) == ()
    assert notes(value, environment={"CUDA_VISIBLE_DEVICES": value or "", "HOME": "/root"}) == ()


@pytest.mark.parametrize("value", ["", " ", "-1", " -1 ", "-2"])
def test_b15_no_gpu_on_purpose_is_said_without_alarm(value):
    assert notes(value)[0].startswith("No GPU on purpose: ")
    assert len(notes(value)) == 1


# What was given, and words that one of the notes must contain.
MEANT_OTHERWISE = {
    "B51: a range": ("0-2", ["Ranges are not read by CUDA", '"0-2" is 0', "Write 0,1,2 "]),
    "a range of dots": ("0..1", ["Ranges are not read", "Write 0,1 "]),
    "a range out of range": ("7-8", ["index 7 does not exist here", "Ranges", "Write 7,8 "]),
    "a semicolon": ("0;1", ["Only commas", '"0;1" is 0', "Write 0,1 "]),
    "a blank": ("0 1", ["Only commas", "Write 0,1 "]),
    "a colon": ("0:1", ["Only commas", "Write 0,1 "]),
    "a wide comma": ("0\uff0c1", ["Only commas", "Write 0,1 "]),
    "a semicolon after a UUID": (f"{A};{B}", ["Only commas", f";{B}", f"Write {A},{B} "]),
    "a semicolon at the end": ("0,1;", ['CUDA ignores ";"', "Write 0,1 "]),
    "hexadecimal": ("0x1", ["Hexadecimal", '"0x1" is 0']),
    "a fraction": ("1.5", ["whole numbers only", '"1.5" is 1']),
    "an exponent": ("1e0", ["whole numbers only", '"1e0" is 1']),
    "a word after a number": ("1abc", ['ignores "abc"', '"1abc" is 1']),
    "a wrapped number": ("4294967297", ["32 bits", '"4294967297" is 1']),
    "a number that wraps below zero": ("4294967295", ["larger than any index", "no GPU"]),
    "a number beyond 64 bits": ("0," + "9" * 30, ["larger than any index", "only physical 0 is"]),
    "thousands of digits": ("9" * 9_999, ["9…", "larger than any index"]),
    "a framework's name": ("cuda:0,cuda:1", ['"cuda:0" is a name', "no GPU", "Write 0,1 "]),
    "another framework's name": ("gpu:1", ["is a name", "Write 1 "]),
    "a device file": ("/dev/nvidia1", ["is a name", "Write 1 "]),
    "single quotes": ("'0'", ["quotes are part of the value", "no GPU", "Write 0 "]),
    "double quotes": ('"0,1"', ["quotes are part of the value", "Write 0,1 "]),
    "round brackets": ("(0,1)", ["no brackets", "no GPU", "Write 0,1 "]),
    "square brackets": ("[0]", ["no brackets", "Write 0 "]),
    "twice": ("1,0,1", ['"1" and "1" both name physical 1', "101", "no GPU"]),
    "twice in other words": ("0-1,0x1", ["both name physical 0", "Ranges", "Hexadecimal"]),
    "twice as a UUID": (f"GPU-aaaa,{A}", [f'"GPU-aaaa" and "{A}" both name physical 0', "101"]),
    "numbers, then a UUID": (
        f"0,{B},1",
        ["all numbers or all UUIDs", f'"{B}"', 'physical 0 is shown; "1"'],
    ),
    "UUIDs, then a number": (f"{A},1", ["all numbers or all UUIDs", '"1" ends the UUIDs']),
    "a blank before the first UUID": (f" {A}", [f'A blank before "{A}"', "no GPU"]),
    "a blank before another UUID": (f"{A}, {B}", [f'A blank before "{B}"', "only physical 0 is"]),
    "a small prefix": ("gpu-aaaa", ['prefix in capitals, "GPU-"', "no GPU"]),
    "a small prefix behind a UUID": (f"{A},gpu-bbbb", ["prefix in capitals", "only physical 0"]),
    "no prefix, a letter first": (A[4:], ['has no "GPU-" before it', "no GPU"]),
    "an unknown UUID": ("GPU-ffff,0", ['No device here has the UUID "GPU-ffff"', '"0" after it']),
    "text after a part of a UUID": (
        "GPU-aaaaxyz",
        ['No device here has the UUID "GPU-aaaaxyz", and nothing', "behind a part of one: no GPU"],
    ),
    "a semicolon after a part of a UUID": (
        "GPU-aaaa;GPU-bbbb",
        ["No device here has", "Only commas separate devices", "Write GPU-aaaa,GPU-bbbb "],
    ),
    "text after a UUID": (f"{A}xyz", ['CUDA ignores "xyz"']),
    "MIG- and a whole GPU": ("MIG-" + A[4:], ["UUID of a whole GPU, physical 0"]),
    "all": ("all", ["NVIDIA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES", "no GPU"]),
    "none": ("none", ['"none" is no device id', "no GPU"]),
    "void": ("void", ['"void" is no device id', "no GPU"]),
    "Slurm's word for none": ("NoDevFiles", ['"NoDevFiles" is no device id', "no GPU"]),
    "Python's None": ("None", ['"None" is no device id', "no GPU"]),
    "NULL": ("NULL", ['"NULL" is no device id', "no GPU"]),
    "B50: words": ("one,two", ['"one" is neither', "no GPU", '"two" after it is not read']),
    "an entry that ends the list": (
        "0,abc,1,2",
        ['"abc"', "only physical 0 is shown", '"1" and "2" after it are not read'],
    ),
    "a long rest": ("0,x,1,2,3,4,5", ['"1", "2", "3" and 2 more after it']),
    "below zero": ("0,-1,1", ['"-1" is below zero', "only physical 0", '"1" after it']),
    "an empty entry": ("0,,1", ["An empty entry ends the list", '"1" after it']),
    "only commas": (",,", ["An empty entry", "no GPU"]),
    "an index that does not exist": (
        "0,7,1",
        ["index 7 does not exist here", "4 GPUs", '"1" after it'],
    ),
    "a control character": ("\x1b[31m0", ['"\ufffd[31m0"', "no GPU"]),
}


@pytest.mark.parametrize("case", MEANT_OTHERWISE.values(), ids=MEANT_OTHERWISE)
def test_a_value_that_was_meant_otherwise_is_explained(case):
    value, words = case
    said = notes(value)
    assert [word for word in words if not any(word in note for note in said)] == [], said
    assert len(said) <= 3
    assert all(note.endswith((".", "?")) and note[0] == note[0].upper() for note in said), said


def test_a_uuid_without_prefix_that_begins_with_a_digit_is_a_number():
    said = notes("2b1f70c3-5d9e-4a86-9c04-71e6a3d8f25b")
    assert said == (
        '"2b1f70c3-5d9e-4a86-9c04-71e6a3d8f25b" has no "GPU-" before it, so CUDA reads the number 2.',
    )


def test_behind_a_part_of_a_uuid_nothing_is_said_to_be_ignored():
    said = notes("GPU-aaaa,GPU-zz,1")
    assert said == (
        'No device here has the UUID "GPU-zz": only physical 0 is shown; "1" after it is not read.',
    )
    for value in ("GPU-aaaaxyz", "GPU-aaaa ", "GPU-aaaa;GPU-bbbb", "GPU-zz"):
        assert visible(value, A4).cuinit == 100
        assert not any("ignores" in note for note in notes(value))
    assert notes("GPU-aaaaxyz", NO_MACHINE) == ()


def test_an_ambiguous_beginning_names_the_devices_it_fits():
    two = machine(gpu(0, "aaaa1111"), gpu(1, "aaaa2222"))
    assert (
        "fits more than one device, physical 0 and physical 1: no GPU" in notes("GPU-aaaa", two)[0]
    )


GLOBAL = {
    "SLURM_JOB_GPUS": "7",
    "SLURM_STEP_GPUS": "6,7",
    "NVIDIA_VISIBLE_DEVICES": "4-7",
}


@pytest.mark.parametrize("name", GLOBAL)
def test_b94_an_index_given_by_a_scheduler_or_container_is_called_a_global_one(name):
    (said,) = notes("7", ONE, {name: GLOBAL[name]})
    assert "index 7 does not exist here, where CUDA counts 1 GPU, from 0: no GPU is shown." in said
    assert f"({name}); here CUDA counts from 0." in said


@pytest.mark.parametrize("listed", ["", "0", "70", "all", "GPU-7", "8-9", "x-y", "²"])
def test_an_index_that_nobody_gave_is_not_blamed_on_a_scheduler(listed):
    (said,) = notes("7", ONE, {"SLURM_JOB_GPUS": listed})
    assert "SLURM" not in said


MISSPELT = ["CUDA_VISIBLE", "CUDA_VISABLE_DEVICES", "CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_GPUS"]
MISSPELT += [
    "cuda_visible_devices",
    "CUDA_VISBLE_DEVICES",
    "CUDAVISIBLEDEVICES",
    "CUDA_VISIBLE_DEVCIES",
]


@pytest.mark.parametrize("name", MISSPELT)
@pytest.mark.parametrize("value", [None, "0"])
def test_b16_b17_a_misspelt_name_is_pointed_out(name, value):
    said = notes(value, environment={name: "1"})
    assert said == (f'CUDA does not read "{name}": did you mean CUDA_VISIBLE_DEVICES?',)


OTHER_NAMES = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_HOME"]
OTHER_NAMES += [
    "NVIDIA_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
    "TPU_VISIBLE_DEVICES",
    "CUDA_PATH",
]
OTHER_NAMES += ["CUDA_VISIBLE_DEVICES_SAVED", "OLD_CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]
OTHER_NAMES += ["XPU_VISIBLE_DEVICES", "HPU_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "PATH"]
OTHER_NAMES += ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", ""]


def test_names_that_mean_something_else_are_left_alone():
    assert notes("0", environment=dict.fromkeys(OTHER_NAMES, "1")) == ()


@pytest.mark.parametrize("value", ["0", "1,0", None])
@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])
def test_the_order_of_different_models_is_not_physical_unless_it_is_asked_for(value, order):
    (said,) = notes(value, SLOW_FIRST, order)
    assert said.startswith("CUDA_DEVICE_ORDER is ")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID makes the numbers physical." in said


def test_the_order_is_no_matter_with_uuids_equal_models_or_pci_order():
    assert notes(SLOW_FIRST.devices[1].uuid, SLOW_FIRST, {}) == ()
    assert notes("1", SLOW_FIRST, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ()
    assert notes("1", A4, {}) == ()
    assert notes("1", SLOW_FIRST) == ()


def test_b53_several_mig_devices_are_never_promised():
    value = f"{PARTS[0].uuid},{PARTS[1].uuid}"
    devices = MIG.devices
    assert notes(value, machine(*devices, driver="525.60.13")) == (
        "Only the first MIG device is used: driver 525 gives a process one.",
    )
    for driver in ("570.86.10", "580.159.04", None, "unknown"):
        (said,) = notes(value, machine(*devices, driver=driver))
        assert said.startswith("Of 2 MIG devices only the first is certain")


def test_a_list_of_mig_devices_that_ends_early_promises_no_more_than_the_first():
    said = notes(f"{PARTS[0].uuid},{PARTS[1].uuid},abc", MIG)
    assert "only 1g.10gb of physical 1 is shown" in said[0]


def test_one_mig_device_gets_no_note():
    assert notes(PARTS[1].uuid, MIG) == ()


def test_b59_the_old_form_says_why_it_is_not_resolved():
    assert "older form" in notes(f"MIG-{PARENT.uuid}/1/0", MIG)[0]
    assert "no MIG device here has these numbers" in notes(f"MIG-{PARENT.uuid}/1/0", MIG)[0]
    assert "no GPU in MIG mode here has that UUID" in notes(f"MIG-{A}/1/0")[0]


def test_unset_with_mig_says_what_is_not_shown():
    assert notes(None, MIG)[0].startswith("3 MIG devices here are not shown")
    assert notes(None, machine(*MIG.devices[:3]))[0].startswith("1 MIG device here is not shown")
    assert "of 3 MIG devices only the first is certain" in notes(None, ONLY_MIG)[0]
    assert notes(None, machine(*ONLY_MIG.devices[:2])) == ()


def test_a_gpu_in_mig_mode_cannot_be_named_whole():
    assert "is physical 1 (in MIG mode), which CUDA does not offer" in notes(PARENT.uuid, MIG)[0]
    assert "counts 1 GPU, from 0, without physical 1 (in MIG mode)" in notes("1", MIG)[0]
    assert notes("0", ONLY_MIG) == ("0 is the first MIG device here, 1g.10gb of physical 1.",)
    assert "counts 1 MIG device, from 0" in notes("1", ONLY_MIG)[0]


def test_gpus_and_mig_devices_in_one_list_are_not_promised_together():
    first = MIG.devices[0].uuid
    assert "only the GPUs are certain" in notes(f"{first},{PARTS[0].uuid}", MIG)[0]
    assert "only the first device is certain" in notes(f"{PARTS[0].uuid},{first}", MIG)[0]


def test_numbers_that_a_lost_gpu_moves_are_explained():
    assert notes("0", LOST) == (
        "0 is physical 1 here, as CUDA does not count physical 0 (fell off the bus).",
    )
    assert "is physical 0 (fell off the bus), which CUDA does not offer" in notes(A, LOST)[0]
    hidden = machine(gpu(1, "bbbb2222"))
    assert notes("0", hidden) == ("0 is physical 1 here.",)


def test_without_a_machine_only_the_text_is_judged():
    for value in (None, "0", "7", A, f"{A},{B}", "0,1"):
        assert notes(value, NO_MACHINE) == ()
    assert notes("0-2", NO_MACHINE)[0] == 'Ranges are not read by CUDA: "0-2" is 0.'
    assert notes("'0'", NO_MACHINE)[0] == "The quotes are part of the value, and CUDA reads none."
    assert notes("-1", NO_MACHINE)[0].startswith("No GPU on purpose")
    assert "GPU-" in notes("gpu-aaaa", NO_MACHINE)[0]


def test_the_pool_note_names_what_lies_outside():
    assert pool_notes("0,1", A4, {A}) == (
        '"0,1" names physical 1, on this machine but not in this pool (physical 0).',
    )
    assert "names physical 0 and physical 1," in pool_notes(f"{A},{B}", A4, [])[0]
    assert pool_notes("0", A4, [])[0].endswith("(which is empty).")


@pytest.mark.parametrize("value", [None, "", "0", A, "7", "GPU-ffff", "0,9"])
def test_the_pool_note_is_silent_inside_the_pool_and_off_the_machine(value):
    assert pool_notes(value, A4, [A]) == ()


@settings(max_examples=300, deadline=None)
@given(
    value=st.one_of(st.none(), st.text(), st.text("0123,;-: GPUMIGabc'\"[]x.")),
    inventory=st.sampled_from([A4, ONE, MIG, ONLY_MIG, LOST, SLOW_FIRST, machine(), NO_MACHINE]),
    environment=st.dictionaries(st.sampled_from([*MISSPELT, *OTHER_NAMES, *GLOBAL]), st.text()),
)
def test_every_note_is_one_printable_sentence_said_once(value, inventory, environment):
    said = visible(value, inventory, environment=environment).notes
    assert len(set(said)) == len(said)
    assert all(note.isprintable() and note.endswith((".", "?")) for note in said), said
    pool_notes(value, inventory, [A])
