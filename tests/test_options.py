"""The request options as traits: set by a kernelspec, a configuration or a command line alike."""

import pytest
from jupyter_client.provisioning import LocalProvisioner
from traitlets.config import Config, Configurable
from traitlets.config.loader import KVArgParseConfigLoader

from jupyter_gpu.core.request import OPTIONS, Request
from jupyter_gpu.faces.options import RequestOptions
from jupyter_gpu.provisioner import GPUProvisioner


class Asking(RequestOptions, Configurable):
    """Something that is configured with the options, and nothing else."""


def test_every_option_of_a_request_is_a_trait_with_help_that_can_be_configured():
    for asking in (Asking, GPUProvisioner):
        traits = asking.class_traits(config=True)
        for name in OPTIONS:
            assert len(traits[name].help) > 20, (asking, name)
            assert traits[name].allow_none, (asking, name)


def test_nothing_is_given_until_somebody_sets_it():
    assert Asking().given_options() == {}
    assert Request.parse(Asking().given_options()) == Request()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpus", 2),
        ("gpus", 0),
        ("gpus", "all"),
        ("gpus", "1/4"),
        ("gpus", "mig:1g.18gb"),
        ("devices", [0, 3]),
        ("min_free_memory", "20GiB"),
        ("model", "H200"),
        ("wait", 0),
        ("wait", "10m"),
        ("identifiers", "uuid"),
        ("topology", "require"),
        ("cpu_affinity", "closest"),
        ("memory_cap", "none"),
        ("memory_cap", "10GiB"),
        ("on_unavailable", "wait"),
    ],
)
def test_an_option_means_the_same_however_it_is_set(name, value):
    by_kernelspec = Asking(**{name: value})
    by_configuration = Asking(config=Config({"Asking": {name: value}}))
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    loader = KVArgParseConfigLoader([f"--Asking.{name}={text}"])
    by_command_line = Asking(config=loader.load_config())
    asked = {
        Request.parse(asking.given_options())
        for asking in (by_kernelspec, by_configuration, by_command_line)
    }
    assert by_kernelspec.given_options() == {name: value}
    assert asked == {Request.parse({name: value})}
    assert len(asked) == 1


def test_the_kernelspec_comes_before_the_configuration():
    configured = Config({"Asking": {"gpus": 4, "model": "H200"}})
    assert Asking(config=configured, gpus=1).given_options() == {"gpus": 1, "model": "H200"}


def test_a_value_of_any_kind_is_taken_and_read_later():
    # A trait that refused here would end the server's start with a message about traits.
    assert Asking(gpus={"no": "number"}).given_options() == {"gpus": {"no": "number"}}


def test_wait_is_set_like_any_other_and_read_as_the_method_of_jupyter_client():
    provisioner = GPUProvisioner(wait="10m", config=Config({"GPUProvisioner": {"wait": 3}}))
    assert provisioner.given_options() == {"wait": "10m"}
    assert provisioner.wait.__func__ is LocalProvisioner.wait
    assert provisioner.wait.__self__ is provisioner
    assert GPUProvisioner().given_options() == {}


def test_setting_one_provisioner_leaves_others_alone():
    first, second = GPUProvisioner(wait=1, gpus=2), GPUProvisioner()
    assert first.given_options() == {"wait": 1, "gpus": 2}
    assert second.given_options() == {}
