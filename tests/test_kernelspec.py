"""What stands in the kernel.json of a kernelspec that asks for GPUs."""

import copy
import json
from pathlib import Path

import pytest

from jupyter_gpu.core import kernelspec
from jupyter_gpu.core.errors import KernelspecError

KERNELSPECS = Path(__file__).parent.parent / "kernelspecs"

IPYKERNEL = {
    "argv": [
        *("/opt/x/bin/python", "-Xfrozen_modules=off", "-m", "ipykernel_launcher"),
        *("-f", "{connection_file}", "--profile=lab"),
    ],
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "metadata": {"debugger": True},
    "env": {"A": "1"},
    "interrupt_mode": "signal",
    "a key of tomorrow": [1],
}
R = {
    "argv": ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"],
    "display_name": "R",
    "language": "R",
}


@pytest.mark.parametrize(
    ("gpus", "name", "title"),
    [
        (0, "pytorch-cpu", "PyTorch (no GPU)"),
        ("1/4", "pytorch-quarter-gpu", "PyTorch (¼ GPU)"),
        (1, "pytorch-1gpu", "PyTorch (1 GPU)"),
        (2, "pytorch-2gpus", "PyTorch (2 GPUs)"),
    ],
)
def test_the_sources_in_the_tree_are_what_is_built_here(gpus, name, title):
    built = kernelspec.pytorch({"gpus": gpus})
    assert json.loads((KERNELSPECS / name / "kernel.json").read_text(encoding="utf-8")) == built
    assert kernelspec.default_name(kernelspec.STEM, {"gpus": gpus}) == name
    assert built["display_name"] == title
    assert built["argv"] == [
        *("python", "-m", "jupyter_gpu.kernel", f"--gpus={gpus}", "--framework=torch"),
        *("-f", "{connection_file}"),
    ]
    assert built["metadata"]["kernel_provisioner"] == {
        "provisioner_name": "gpu-provisioner",
        "config": {"gpus": gpus},
    }


def test_our_kernelspec_says_everything_that_ipykernels_own_says():
    from ipykernel.kernelspec import get_kernel_dict

    own, ours = get_kernel_dict(), kernelspec.pytorch({})
    for key, value in own.items():
        if key == "metadata":
            assert ours[key].items() >= value.items()
        elif key not in ("argv", "display_name"):
            assert ours[key] == value


def test_the_request_stands_in_the_arguments_and_in_the_configuration():
    options = {
        "min_free_memory": "20GiB",
        "gpus": 2,
        "model": "H200",
        "devices": ("0", "1"),
        "wait": None,
    }
    built = kernelspec.pytorch(options, executable="/opt/x/bin/python")
    assert built["argv"][:7] == [
        *("/opt/x/bin/python", "-m", "jupyter_gpu.kernel"),
        *("--gpus=2", "--min-free-memory=20GiB", "--model=H200", "--devices=0,1"),
    ]
    assert built["metadata"]["kernel_provisioner"]["config"] == {
        "min_free_memory": "20GiB",
        "gpus": 2,
        "model": "H200",
        "devices": ["0", "1"],
    }
    assert json.loads(json.dumps(built)) == built


def test_one_gpu_is_asked_for_where_the_request_does_not_say():
    built = kernelspec.pytorch({"model": "H200"})
    assert built["display_name"] == "PyTorch (1 GPU)"
    assert "--gpus=1" in built["argv"]
    assert kernelspec.gpus_of(built) == 1


def test_all_gpus_have_a_name_and_a_title():
    options = {"gpus": "all"}
    assert kernelspec.default_name("pytorch", options) == "pytorch-all-gpus"
    assert kernelspec.display_name("PyTorch", options) == "PyTorch (all GPUs)"
    assert kernelspec.gpus_of(kernelspec.pytorch(options)) == "all"


def test_the_sources_in_the_tree_are_all_looked_at_here():
    names = {"pytorch-cpu", "pytorch-quarter-gpu", "pytorch-1gpu", "pytorch-2gpus"}
    assert {folder.name for folder in KERNELSPECS.iterdir()} == names


@pytest.mark.parametrize(
    ("gpus", "name", "title"),
    [
        ("1/2", "half-gpu", "½ GPU"),
        ("2/4", "half-gpu", "½ GPU"),
        ("1/3", "third-gpu", "⅓ GPU"),
        ("¼", "quarter-gpu", "¼ GPU"),
        ("3/8", "3-of-8-gpu", "⅜ GPU"),
        ("3/10", "3-of-10-gpu", "3/10 GPU"),
        ("1/1", "1gpu", "1 GPU"),
        ("mig:1g.18gb", "mig-1g.18gb", "MIG 1g.18gb"),
        ("mig:1g.10gb+me", "mig-1g.10gb.me", "MIG 1g.10gb+me"),
        ("2", "2gpus", "2 GPUs"),
        (None, "1gpu", "1 GPU"),
        ("two", "two-gpus", "two GPUs"),
    ],
)
def test_an_amount_has_a_folder_name_and_a_title(gpus, name, title):
    options = {"gpus": gpus}
    assert kernelspec.default_name("pytorch", options) == f"pytorch-{name}"
    assert kernelspec.check_name(f"pytorch-{name}") == f"pytorch-{name}"
    assert kernelspec.display_name("PyTorch", options) == f"PyTorch ({title})"
    for provisioner in (True, False):
        built = kernelspec.pytorch(options, provisioner=provisioner)
        assert kernelspec.title_of(built) == "PyTorch"
        assert kernelspec.stem_of(f"mine-{name}", built) == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 2, "wait": "30m"}, "2 GPUs, waits 30m"),
        ({"gpus": 2, "wait": "8s"}, "2 GPUs"),
        ({"gpus": 2, "topology": "require"}, "2 GPUs, NVLink"),
        ({"gpus": "4", "topology": "prefer"}, "4 GPUs, NVLink preferred"),
        ({"gpus": "all", "topology": "require", "wait": "1h"}, "all GPUs, NVLink, waits 1h"),
        ({"gpus": 2, "topology": "any"}, "2 GPUs"),
        ({"gpus": 1, "topology": "require"}, "1 GPU"),
        ({"topology": "require"}, "1 GPU"),
        ({"gpus": "1/4", "topology": "prefer", "wait": "2m"}, "¼ GPU, waits 2m"),
    ],
)
def test_an_entry_says_what_is_asked_for_beside_the_amount_and_keeps_its_title(options, said):
    assert kernelspec.display_name("PyTorch", options) == f"PyTorch ({said})"
    assert kernelspec.title_of(kernelspec.pytorch(options)) == "PyTorch"


def test_every_option_stands_in_the_arguments_and_in_the_configuration():
    options = {
        "gpus": "1/4",
        "topology": "prefer",
        "cpu_affinity": "closest",
        "memory_cap": "10GiB",
    }
    built = kernelspec.pytorch(options)
    assert built["argv"][3:7] == [
        *("--gpus=1/4", "--topology=prefer", "--cpu-affinity=closest", "--memory-cap=10GiB")
    ]
    assert kernelspec.config_of(built) == options
    assert kernelspec.derived(built, {"gpus": 2}, interpreter=("python",)) == kernelspec.pytorch(
        {"gpus": 2}
    )


def test_without_the_provisioner_the_wrapper_alone_asks():
    built = kernelspec.pytorch({"gpus": 2}, provisioner=False)
    assert built["metadata"] == {"debugger": True, "supported_encryption": ["curve"]}
    assert kernelspec.is_ours(built)
    assert kernelspec.provisioner_of(built) is None
    assert kernelspec.gpus_of(built) == 2


def test_another_language_keeps_its_command_and_everything_else():
    source = {**R, "env": {"R_HOME": "/x"}, "metadata": {"kept": 1}, "interrupt_mode": "signal"}
    before = copy.deepcopy(source)
    built = kernelspec.derived(source, {"gpus": 2})
    assert source == before
    stanza = {"provisioner_name": "gpu-provisioner", "config": {"gpus": 2}}
    assert built == {
        **source,
        "display_name": "R (2 GPUs)",
        "metadata": {"kept": 1, "kernel_provisioner": stanza},
    }


def test_ipykernel_is_replaced_by_the_wrapper_with_its_own_arguments_after_ours():
    interpreter = kernelspec.interpreter_of(IPYKERNEL["argv"])
    assert interpreter == ("/opt/x/bin/python", "-Xfrozen_modules=off")
    built = kernelspec.derived(IPYKERNEL, {"gpus": 2}, interpreter=interpreter)
    assert built["argv"] == [
        *("/opt/x/bin/python", "-Xfrozen_modules=off", "-m", "jupyter_gpu.kernel"),
        *("--gpus=2", "-f", "{connection_file}", "--profile=lab"),
    ]
    assert built["display_name"] == "Python 3 (ipykernel) (2 GPUs)"
    assert built["env"] == {"A": "1"}
    assert built["a key of tomorrow"] == [1]
    assert IPYKERNEL["metadata"] == {"debugger": True}


def test_one_of_ours_as_the_source_changes_only_its_request():
    one = kernelspec.pytorch({"gpus": 1, "model": "H200"}, executable="/p")
    two = kernelspec.derived(one, {"gpus": 2}, interpreter=("/p",))
    assert two == kernelspec.pytorch({"gpus": 2}, executable="/p")
    assert kernelspec.stem_of("pytorch-1gpu", one) == "pytorch"
    assert kernelspec.stem_of("mine", one) == "mine"
    bare = kernelspec.derived(one, {"gpus": 2}, interpreter=("/p",), provisioner=False)
    assert bare == kernelspec.pytorch({"gpus": 2}, executable="/p", provisioner=False)


def test_a_name_that_only_looks_like_ours_is_left_alone():
    looks = {**R, "display_name": "R (1 GPU)"}
    assert kernelspec.stem_of("r-1gpu", looks) == "r-1gpu"
    assert kernelspec.title_of(looks) == "R (1 GPU)"


def test_a_kernelspec_with_another_provisioner_is_refused_and_the_default_one_is_not():
    source = {**R, "metadata": {"kernel_provisioner": {"provisioner_name": "far-away"}}}
    with pytest.raises(KernelspecError, match="'far-away'"):
        kernelspec.derived(source, {"gpus": 1})
    local = {**R, "metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}}}
    built = kernelspec.derived(local, {"gpus": 1})
    assert kernelspec.provisioner_of(built) == "gpu-provisioner"


@pytest.mark.parametrize(
    ("argv", "interpreter"),
    [
        (["python", "-m", "ipykernel_launcher", "-f", "x"], ("python",)),
        (["python", "-m", "ipykernel", "-f", "x"], ("python",)),
        (
            ["conda", "run", "-n", "x", "python", "-m", "ipykernel"],
            ("conda", "run", "-n", "x", "python"),
        ),
        (["python", "-m", "jupyter_gpu.kernel", "-f", "x"], ("python",)),
        (["python", "-m", "xeus_python", "-f", "x"], None),
        (["-m", "ipykernel"], None),
        (["ipykernel"], None),
        (["R", "-e", "x"], None),
    ],
)
def test_the_interpreter_is_what_stands_before_ipykernel(argv, interpreter):
    assert kernelspec.interpreter_of(argv) == interpreter


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"argv": "python"},
        {"argv": [1, 2]},
        {"argv": ["python", "-m", "ipykernel_launcher"], "metadata": None},
        {"metadata": []},
        {"metadata": {"kernel_provisioner": "gpu-provisioner"}},
        {"metadata": {"kernel_provisioner": {"provisioner_name": ["gpu-provisioner"]}}},
    ],
)
def test_whatever_stands_in_a_strange_kernel_json_it_is_not_ours(spec):
    assert not kernelspec.is_ours(spec)
    assert kernelspec.provisioner_of(spec) is None
    assert kernelspec.gpus_of(spec) == 1


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        ({"gpus": 4}, 4),
        ({"gpus": "4"}, 4),
        ({"gpus": "all"}, "all"),
        ({"gpus": "¼"}, "1/4"),
        ({"gpus": "2/8"}, "1/4"),
        ({"gpus": "MIG:1g.18gb"}, "MIG:1g.18gb"),
        ({"gpus": "mig:1G.18GB"}, "mig:1g.18gb"),
        ({"gpus": -3}, -3),
        ({"gpus": "two"}, "two"),
        ({"gpus": [2]}, 1),
        ({}, 1),
        (None, 1),
        (3, 1),
    ],
)
def test_the_number_is_read_back_from_the_configuration(config, gpus):
    stanza = {"provisioner_name": "gpu-provisioner", "config": config}
    assert kernelspec.gpus_of({"metadata": {"kernel_provisioner": stanza}}) == gpus


def test_options_where_nothing_reads_them_are_found():
    stanza = {"provisioner_name": "gpu-provisioner", "config": {"gpus": 2}, "wait": 0}
    spec = {"gpus": 2, "metadata": {"kernel_provisioner": stanza, "memory_cap": "1GiB"}}
    assert kernelspec.misplaced_options(spec) == (
        ("the top level", "gpus"),
        ("metadata", "memory_cap"),
        ("metadata.kernel_provisioner", "wait"),
    )
    assert kernelspec.misplaced_options(kernelspec.pytorch({"gpus": 2, "model": "H200"})) == ()
    assert kernelspec.misplaced_options({"metadata": None, "config": 1}) == ()


@pytest.mark.parametrize(
    ("config", "arguments", "unequal"),
    [
        ({"gpus": 2}, {"gpus": "2"}, ()),
        ({}, {"gpus": "1", "wait": "8s"}, ()),
        ({"devices": [0, 1]}, {"devices": "0,1"}, ()),
        ({"min_free_memory": "1GiB"}, {"min_free_memory": "1024MiB"}, ()),
        ({}, {"on_unavailable": "wait"}, ()),
        ({"on_unavailable": "wait"}, {}, ("on_unavailable",)),
        ({"gpus": 2, "model": "H200"}, {"gpus": "1"}, ("gpus", "model")),
        ({}, {"identifiers": "uuid"}, ("identifiers",)),
        ({"gpus": "1/4"}, {"gpus": "2/8", "topology": "any", "memory_cap": "auto"}, ()),
        ({"gpus": "1/4"}, {"gpus": "1/3", "cpu_affinity": "closest"}, ("gpus", "cpu_affinity")),
    ],
)
def test_options_that_mean_different_things_in_the_two_places_are_found(config, arguments, unequal):
    assert kernelspec.unequal_options(config, arguments) == unequal


@pytest.mark.parametrize(
    ("value", "text"), [(None, "not given"), (2, "2"), ([0, 1], "0,1"), ("10m", "10m")]
)
def test_a_value_is_shown_as_an_argument_has_it(value, text):
    assert kernelspec.option_text(value) == text


def test_a_slurm_kernelspec_is_ours_too():
    stanza = {"provisioner_name": "slurm-gpu-provisioner", "config": {"gpus": 2}}
    assert kernelspec.is_ours({"metadata": {"kernel_provisioner": stanza}})


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", ".", "..", "pytörch", "x\n"])
def test_a_name_that_jupyter_could_not_list_is_refused(name):
    with pytest.raises(KernelspecError, match="cannot name a kernelspec"):
        kernelspec.check_name(name)


def test_a_name_is_stored_in_lower_case():
    assert kernelspec.check_name("My.Kernel-2_x") == "my.kernel-2_x"


def test_a_kernel_json_without_a_command_is_refused():
    with pytest.raises(KernelspecError, match="no command"):
        kernelspec.argv_of({"argv": []})
