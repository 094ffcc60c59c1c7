"""The checks of the rules and of the holds."""

import dataclasses

import pytest

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.holds import Hold, Holds
from jupyter_gpu.core.overview import Overview, RulesShown
from jupyter_gpu.core.site_checks import site_checks
from jupyter_gpu.core.visibility import visible

INVENTORY = Inventory("nvml", "580", "13.0", devices=(Device(0, "GPU-a", "NVIDIA H200"),))
OVERVIEW = Overview(INVENTORY, visible(None, INVENTORY))
HOLD = Hold("GPU-a", 0, "fan", "root", "2026-12-01T09:12:00+00:00")


def found(**changes):
    checks = site_checks(dataclasses.replace(OVERVIEW, **changes))
    return [(check.name, check.status, check.found, check.fix) for check in checks]


def test_where_there_is_nothing_there_is_nothing_to_check():
    assert found() == []


def test_rules_that_can_be_used_are_named():
    shown = RulesShown("/etc/jupyter-gpu.toml")
    assert found(rules=shown) == [("rules", "ok", "/etc/jupyter-gpu.toml", None)]


def test_rules_with_an_error_fail_with_the_error():
    ((name, status, words, fix),) = found(rules=RulesShown(problem="line 3: max_device?"))
    assert (name, status, words) == ("rules", "fail", "line 3: max_device?")
    assert "nothing is granted" in fix


def test_a_reservation_of_no_device_is_a_warning():
    shown = RulesShown("/etc/jupyter-gpu.toml", in_vain=("GPU-zzz",))
    assert [row[1] for row in found(rules=shown)] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("hold", "status", "words"),
    [
        (HOLD, "ok", "GPU 0 is on hold since"),
        (dataclasses.replace(HOLD, uuid="GPU-gone"), "warn", "GPU-gone is on hold since"),
    ],
)
def test_devices_on_hold_are_named(hold, status, words):
    ((name, found_status, said, fix),) = found(holds=Holds((hold,)))
    assert (name, found_status) == ("holds", status)
    assert said.startswith(words)
    assert (fix is None) == (status == "ok")


def test_a_list_of_holds_that_is_not_believed_is_a_warning():
    assert found(holds=Holds(problem="not root's"))[0][:3] == ("holds", "fail", "not root's")
