"""The site: what the rules and the holds of a place mean for this user."""

import os
from fractions import Fraction

import pytest
from kernels import queue

import jupyter_gpu
from jupyter_gpu.adapters.holds_file import change_holds
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import user_name
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.holds import Hold, Holds
from jupyter_gpu.core.rules import RulesError
from jupyter_gpu.site import Site, rules_shown

ME = user_name(os.getuid())
pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def site(place, tmp_path):
    """A function that reads a site with these rules."""

    def make(text="", groups=None):
        path = tmp_path / "rules.toml"
        path.write_text(text)
        return Site(place, {"JUPYTER_GPU_CONFIG": str(path)}, groups)

    return make


def holdings(place):
    with LeaseStore(place) as store:
        return store.holdings()


def test_a_site_without_rules_limits_nobody_and_asks_for_no_groups(place):
    site = Site(place, {})
    assert (site.limited, site.groups, site.notebooks) == (False, None, "all")
    assert site.source == "no file of rules"
    assert site.over_limit(holdings(place), Fraction(100), ()) is None
    assert site.never(Fraction(100)) is None
    assert site.obstacle(jupyter_gpu.inventory().devices[0]) is None


def test_a_change_of_the_rules_counts_at_once(site):
    assert not site().limited
    assert site("max_devices_per_user = 1\n").limited
    with pytest.raises(RulesError):
        site("max_devices_per_user = 'many'\n")


def test_known_groups_are_not_asked_for_again(site):
    text = "max_devices_per_user = 1\n[groups.staff]\nmax_devices_per_user = 4\n"
    assert site(text, ("staff",)).own.max_devices == 4
    assert site(text, ()).own.max_devices == 1
    assert site(text).groups is not None


def test_what_a_new_lease_replaces_does_not_count(site, place):
    limited = site("max_devices_per_user = 2\n")
    with jupyter_gpu.acquire("1/2") as half, jupyter_gpu.acquire(1):
        found = holdings(place)
        said = limited.over_limit(found, Fraction(1), ())
        assert said.startswith("You hold 1½ devices, this asks for 1 more, and the limit is 2")
        assert limited.over_limit(found, Fraction(1), (half.id,)) is None
        assert limited.over_limit(found, Fraction(1, 2), ()) is None


def test_what_can_never_be_had_is_known_whatever_is_held(site):
    limited = site("max_devices_per_user = '1/2'\n")
    assert limited.never(Fraction(1, 2)) is None
    assert "the limit is ½" in limited.never(Fraction(1))


def test_a_reservation_and_a_hold_are_obstacles(site, place):
    devices = jupyter_gpu.inventory().devices
    LeaseStore(place, write=True).close()
    hold = Hold(devices[2].uuid, 2, "fan", "root", "2026-12-01T09:12:00+01:00")
    change_holds(place, lambda _: Holds((hold,)))
    found = site('[[reserved]]\ndevices = [1]\nusers = ["carol"]\n')
    assert found.obstacle(devices[0]) is None
    assert found.obstacle(devices[1]) == "reserved for carol"
    assert found.obstacle(devices[2]) == "on hold since 2026-12-01 09:12 by root: fan"


def test_the_limit_of_who_waits_is_looked_up_by_their_name(site, place):
    nobody = user_name(65534)
    limited = site(f"[users.{nobody}]\nmax_devices_per_user = 1\n")
    assert not limited.limited
    assert limited.limit_of(nobody, holdings(place), Fraction(2)).startswith(
        "max_devices_per_user = 1"
    )
    assert limited.limit_of(nobody, holdings(place), Fraction(1)) is None
    assert limited.limit_of(ME, holdings(place), Fraction(9)) is None
    assert limited.limit_of(None, holdings(place), Fraction(9)) is None
    assert site().limit_of(nobody, holdings(place), Fraction(9)) is None


class TestShown:
    """What views get of it."""

    def shown(self, place, tmp_path, text):
        path = tmp_path / "rules.toml"
        path.write_text(text)
        environ = {"JUPYTER_GPU_CONFIG": str(path)}
        return rules_shown(place, environ, jupyter_gpu.inventory(), holdings(place))

    def test_the_own_limit_and_what_is_reserved(self, place, tmp_path):
        text = 'max_devices_per_user = 2\n[[reserved]]\ndevices = [1]\nusers = ["carol"]\n'
        with jupyter_gpu.acquire("1/4"):
            found = self.shown(place, tmp_path, text)
        assert found.limit.startswith("You hold ¼ device; your limit: max_devices_per_user = 2")
        assert list(found.reserved.values()) == ["reserved for carol"]
        assert found.answer["held"] == 0.25
        assert (found.problem, found.held_back) == (None, {})

    def test_a_broken_file_is_said_and_breaks_no_view(self, place, tmp_path):
        found = self.shown(place, tmp_path, "nonsense = 1\n")
        assert "the file of rules cannot be used" in found.problem

    def test_who_waits_for_their_own_limit_is_marked(self, place, tmp_path, program, eventually):
        code = "import jupyter_gpu; jupyter_gpu.acquire(2, wait=60)"
        with jupyter_gpu.acquire(8):
            program(code)
            eventually(queue)
            ((lease_id, words),) = self.shown(
                place, tmp_path, "max_devices_per_user = 8\n"
            ).held_back.items()
            assert lease_id == queue()[0].record.id
            assert words.startswith("max_devices_per_user = 8")
            assert not self.shown(place, tmp_path, "max_devices_per_user = 10\n").held_back
