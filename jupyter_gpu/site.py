"""The site: what this machine's administrator allows whom, and which devices are on hold.

Every grant looks at it anew, so that a change of the rules counts at once. An error in the rules
is an error of the grant: they are never passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fractions import Fraction

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.holds_file import read_holds
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.rules_file import groups_of, read_rules
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import GPUError, StoreError
from jupyter_gpu.core.leases import Holdings, Notebooks
from jupyter_gpu.core.overview import RulesShown
from jupyter_gpu.core.policy import devices_asked
from jupyter_gpu.core.rules_view import (
    PersonRules,
    can_never_have,
    held_by,
    number_words,
    over_limit,
    rules_answer,
)


class Site:
    """The rules and the holds of one place, as the user of this process meets them.

    ``groups`` are that user's, where they are known already: a directory service may take its time
    to tell. They are asked for only where there are rules.

    Raises
    ------
    RulesError
        When the file of rules cannot be used.
    """

    def __init__(
        self,
        place: Place,
        environ: Mapping[str, str],
        groups: tuple[str, ...] | None = None,
    ) -> None:
        self.rules = read_rules(place, environ)
        self.holds = read_holds(place)
        self.user = processes.user_name(os.getuid())
        if groups is None and self.rules.source is not None:
            groups = groups_of(self.user)
        self.groups = groups
        self.own: PersonRules = self.rules.for_person(self.user, groups or ())

    @property
    def notebooks(self) -> Notebooks:
        """Who may read whose notebook names."""
        return self.rules.show_notebooks

    @property
    def limited(self) -> bool:
        """Whether this user's leases are counted."""
        return self.own.max_devices is not None

    def require_sound(self) -> None:
        """Check that nothing is granted which an administrator may have taken out of service.

        Raises
        ------
        StoreError
            When the list of holds cannot be believed.
        """
        if self.holds.problem is not None:
            raise StoreError(f"GPUs cannot be leased: {self.holds.problem}")

    def obstacle(self, device: Device) -> str | None:
        """Return why this user may not have a device, None where nothing stands against it."""
        hold = self.holds.holding(device)
        return hold.words if hold is not None else self.own.reserved_against(device)

    def over_limit(self, holdings: Holdings, wanted: Fraction, own: Iterable[str]) -> str | None:
        """Return the sentence of a limit that a lease of so many devices would pass, or None.

        ``own`` are the ids of leases that the new one replaces.
        """
        if not self.limited:
            return None
        return over_limit(self.own, held_by(_less(holdings, own), self.user), wanted)

    @property
    def source(self) -> str:
        """The file of rules, for words about one of them."""
        return self.rules.source or "no file of rules"

    def never(self, wanted: Fraction) -> str | None:
        """Return the sentence of a limit that so many devices pass whatever else is held."""
        never = can_never_have(self.own, wanted)
        return over_limit(self.own, Fraction(0), wanted) if never else None

    def limit_of(self, user: str | None, holdings: Holdings, wanted: Fraction) -> str | None:
        """Return the words of the limit that keeps another user's request from being met now."""
        if user is None or not self.rules.limits_anyone:
            return None
        theirs = self.rules.for_person(user, groups_of(user))
        held_back = over_limit(theirs, held_by(holdings, user), wanted) is not None
        return theirs.limit_words if held_back else None


def rules_shown(
    place: Place, environ: Mapping[str, str], inventory: Inventory, holdings: Holdings
) -> RulesShown:
    """Return what of the rules concerns the user of this process, for the views."""
    try:
        site = Site(place, environ)
    except GPUError as error:
        return RulesShown(problem=str(error))
    held = held_by(holdings, site.user)
    reserved = {
        device.uuid: why
        for device in inventory.devices
        if device.uuid is not None and (why := site.own.reserved_against(device)) is not None
    }
    limit = None
    if site.own.limit_words is not None:
        limit = f"You hold {number_words(held)}; your limit: {site.own.limit_words}."
    held_back = {}
    for waiter in holdings.waiters:
        devices = tuple(d for d in inventory.devices if d.uuid in waiter.record.could_use)
        wanted = devices_asked(waiter.record.request, devices)
        why = site.limit_of(waiter.user, holdings, wanted)
        if why is not None:
            held_back[waiter.record.id] = why
    answer = rules_answer(site.rules, site.own, held)
    in_vain = site.rules.reserved_in_vain(inventory)
    return RulesShown(site.rules.source, limit, reserved, held_back, None, answer, in_vain)


def _less(holdings: Holdings, own: Iterable[str]) -> Holdings:
    gone = set(own)
    left = tuple(lease for lease in holdings.leases if lease.record.id not in gone)
    return Holdings(left, holdings.waiters, holdings.unclaimed)
