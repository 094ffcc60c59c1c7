import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support_cli import GIB, NOW, device, kernel, lease, overview, uuid, waiter
from support_monitor import TOTAL, moment, points, reading, waiting

from jupyter_gpu.core.devices import Device, Inventory, Process
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.live import Moment, Past, Point
from jupyter_gpu.core.monitor_html import PROCESSES, page, parts
from jupyter_gpu.core.monitor_view import Choice, monitor_view
from jupyter_gpu.core.overview import Leasing, SeenProcess
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.core.render_text import as_text

ALL, COMPACT = Choice(), Choice(compact=True)
VOID = {"br", "path"}


class Balance(HTMLParser):
    """Fails on markup whose elements do not close in order; gathers tags, text and attributes."""

    def __init__(self, markup):
        super().__init__()
        self.open, self.tags, self.words, self.attributes = [], [], [], []
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes.extend(attributes)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.extend(attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def flat(markup):
    return Balance(markup).text


def everything(live):
    return "".join((live.style, live.state, live.now, *live.cards, live.rest))


def busy():
    """Eight devices, each with every number at its widest and more processes than fit."""
    processes = (Process(4711, 100 * GIB), Process(4411, 20 * GIB), Process(12345, GIB), *(
        Process(20000 + n, 10 * 2**20) for n in range(5)
    ))  # fmt: skip
    full = reading(*processes, utilization_percent=100, power_watts=699.6)
    jagged = points(load=lambda n: n * 37 % 101, memory=lambda n: n * 7 * GIB % TOTAL)
    return moment(
        8,
        tuple(range(8)),
        readings={uuid(n): full for n in range(8)},
        past={uuid(n): jagged for n in range(8)},
    )


def test_the_fast_numbers_of_eight_busy_devices_are_small():
    assert len(parts(busy(), ALL).now.encode()) <= 1750


def test_a_full_card_is_small():
    assert max(len(one.encode()) for one in parts(busy(), ALL).cards) <= 1150


def test_markup_needs_no_escaping_on_the_wire():
    live = parts(busy(), ALL)
    assert '"' not in live.now + "".join(live.cards) + live.state + live.rest


def test_the_numbers_stand_in_the_place_of_their_card():
    live = parts(moment(), ALL)
    assert [re.search("cuda:.", one)[0] for one in live.cards] == ["cuda:0", "cuda:1"]
    assert re.findall("aria-label='(cuda:.)'", live.now) == ["cuda:0", "cuda:1"]
    assert "12.0 mine, 3.6 others, 124.8 GiB free Load 43 % 61 °C 412 W" in flat(live.now)


def test_the_bar_has_this_kernels_part_and_the_others():
    assert "style='--m:8;--o:3'" in parts(moment(), ALL).now


@pytest.mark.parametrize("total", [None, 0])
def test_without_a_total_the_bar_is_empty(total):
    shown = moment(own=(3,), devices=[device(3, memory_total_bytes=total)])
    assert "style='--m:0;--o:0'" in parts(shown, ALL).now


def test_more_in_use_than_there_is_stays_inside_the_bar():
    shown = moment(own=(3,), readings={uuid(3): reading(Process(4711, 300 * GIB))})
    assert "style='--m:100;--o:0'" in parts(shown, ALL).now


def test_cards_name_three_processes_and_count_the_rest():
    card = parts(busy(), ALL).cards[0]
    assert card.count("<li>") == PROCESSES + 1
    assert "and 5 more" in card
    assert "4711 this kernel" in card


def test_a_card_with_a_problem_says_it_in_place_of_its_processes():
    lost = Reading(problem="GPU 3 is lost")
    shown = moment(readings={uuid(3): lost, uuid(5): reading()})
    first, second = parts(shown, ALL).cards
    assert "GPU 3 is lost" in first
    assert "4711" not in first
    assert "4711" in second


def test_a_compact_line_has_its_problem_among_the_numbers():
    shown = moment(readings={uuid(3): Reading(problem="GPU 3 is lost"), uuid(5): reading()})
    live = parts(shown, COMPACT)
    assert "GPU 3 is lost" in live.now
    assert "<svg" not in "".join(live.cards)
    assert "Load 43 %" in live.now


def test_the_state_says_whether_it_is_live():
    assert "Live while a cell runs." in flat(parts(moment(), ALL).state)
    still = flat(parts(moment(running=False), ALL).state)
    assert "Still since 12:00:00; look again, or run a cell." in still


def test_nothing_but_the_numbers_changes_where_nothing_has_changed():
    shown = moment()
    later = replace(
        shown,
        at=NOW + timedelta(seconds=2),
        readings={name: reading(utilization_percent=44) for name in shown.readings},
    )
    before, after = parts(shown, ALL), parts(later, ALL)
    assert before.now != after.now
    assert (before.cards, before.state, before.rest) == (after.cards, after.state, after.rest)


def test_the_rest_of_the_machine_is_folded_with_its_holders_and_the_queue():
    live = parts(moment(4, (3,), waiters=waiting()), ALL)
    assert live.rest_title == "The rest of this machine: 3 devices, 2 free · 1 in the queue"
    assert "0 H200 0.0 of 140.4 GiB 0 % bob (expb.ipynb)" in flat(live.rest)
    assert "Waiting, in this order: carol for 2 GPUs." in flat(live.rest)


def test_where_nothing_is_left_there_is_no_rest():
    live = parts(moment(1, (0,)), ALL)
    assert live.rest_title == ""
    assert "<details" not in page(moment(1, (0,)), ALL)


def test_where_leases_mean_nothing_no_device_is_called_free():
    shown = moment(4, (3,), leasing=Leasing(exclusive=False))
    assert parts(shown, ALL).rest_title == "The rest of this machine: 3 devices"


def test_the_page_says_when_it_was_and_needs_nothing_from_elsewhere():
    whole = page(moment(), ALL)
    assert "At 12:00:00 on 2026-12-01." in flat(whole)
    assert {"script", "link", "img", "a"} & set(Balance(whole).tags) == set()
    assert "<details><summary>" in whole
    assert [name for name, _ in Balance(whole).attributes if name.startswith("on")] == []


def test_in_the_page_each_card_has_its_numbers():
    for card in page(moment(), ALL).split("<div class='gk'>")[1:]:
        assert "12.0 mine, 3.6 others" in card


@pytest.mark.parametrize("choice", [ALL, COMPACT])
@pytest.mark.parametrize("count", [0, 1, 2, 8, 16])
def test_any_number_of_devices_has_as_many_cards_and_numbers(count, choice):
    shown = moment(max(count, 1), tuple(range(count)))
    live = parts(shown, choice)
    assert len(live.cards) == live.now.count("class='gi'") == count
    assert page(shown, choice).count("class='gk'") == count
    Balance(page(shown, choice))


def test_without_a_device_the_state_line_gives_the_reason():
    shown = moment(own=())
    none = Inventory("none", problem="No NVIDIA driver is loaded here.")
    shown = replace(shown, overview=replace(shown.overview, inventory=none), readings={})
    state = flat(parts(shown, ALL).state)
    assert "No GPU can be seen here" in state
    assert "No NVIDIA driver is loaded here." in state
    assert "Curves" not in state


@pytest.mark.parametrize(
    "nasty", ["<script>alert(1)</script>.ipynb", "a'b\"c&d", "ab\u202egpj", "\ud800"]
)
def test_what_others_have_written_is_shown_and_never_markup(nasty):
    mine = lease("a", (3,), nasty, Owner("kernel", notebook=f"/home/{nasty}"))
    theirs = lease("b", (0,), nasty, Owner("command", command=nasty))
    process = kernel(
        launched="3", now="3", lease_id="a" * 15, in_force=(3,), notices=(nasty,), missing=(nasty,)
    )
    shown = moment(own=(3,), leases=(mine, theirs), process=process, problem=nasty)
    seen = (SeenProcess(4411, nasty, nasty), SeenProcess(4711, nasty, nasty))
    shown = replace(shown, overview=replace(shown.overview, seen=seen))
    for choice in (ALL, COMPACT, Choice((nasty,))):
        for markup in (page(shown, choice), everything(parts(shown, choice))):
            found = Balance(markup)
            assert "script" not in found.tags
            assert "\u202e" not in markup
            assert {name for name, _ in found.attributes} <= {
                "class", "style", "role", "aria-label", "scope", "d", "viewbox",
                "preserveaspectratio",
            }  # fmt: skip
            markup.encode()


words = some.text(max_size=40)
maybe = some.none() | words
number = some.none() | some.integers(-5, 2**50)
real = some.none() | some.floats(width=32) | some.integers(0, 100)
name = some.sampled_from([uuid(n) for n in range(4)])
process = some.builds(Process, some.integers(1, 9), number)
reading_ = some.builds(
    Reading, number, real, real, real, some.none() | some.integers(-20, 200),
    some.none() | some.lists(process, max_size=6).map(tuple), maybe,
)  # fmt: skip
point = some.builds(
    Point, some.floats(-900, 900).map(lambda ago: NOW.timestamp() + ago), number, number, real
)
device_ = some.builds(
    Device, some.integers(0, 9), some.none() | name, words, some.sampled_from(["gpu", "mig"]),
    memory_total_bytes=number, memory_used_bytes=number,
    utilization_percent=some.none() | some.integers(0, 100), problem=maybe, mig_mode=some.booleans(),
    processes=some.lists(process, max_size=3).map(tuple),
)  # fmt: skip
in_force = some.lists(
    some.builds(
        InForce, some.integers(0, 9), some.none() | some.integers(0, 9), some.none() | name
    ),
    max_size=4,
).map(tuple)


@some.composite
def moments(draw):
    asks = draw(
        some.none()
        | some.builds(
            lambda state, given_, held, *notes: kernel(
                state=state, lease_id="a" * 15 if held else None,
                notices=notes[:1], advice=notes[1:],
            ).__class__(
                1, notes[0], notes[1], state, given_, "a" * 15 if held else None, notes[:1]
            ),
            some.sampled_from(["open", "frozen", "absent", "forked", "simulated"]),
            some.none() | in_force, some.booleans(), words, words,
        )
    )  # fmt: skip
    machine = Inventory(
        draw(some.sampled_from(["nvml", "simulated", "none"])), draw(maybe), draw(maybe),
        draw(maybe), tuple(draw(some.lists(device_, max_size=4))),
    )  # fmt: skip
    leases = [lease("a", (3,), draw(words), Owner("kernel", notebook=draw(maybe)))]
    seen = tuple((n, draw(words), draw(words)) for n in draw(some.sets(some.integers(1, 9))))
    shown = overview(
        machine, leases[: draw(some.integers(0, 1))], process=asks, seen=seen,
        waiters=(waiter("w", draw(words)),),
    )  # fmt: skip
    past = Past(draw(some.dictionaries(name, some.lists(point, max_size=12))))
    readings = draw(some.dictionaries(name, reading_))
    return Moment(NOW, shown, readings, past, draw(some.booleans()), draw(maybe))


choices = some.builds(
    Choice, some.none() | some.lists(name | words, max_size=3).map(tuple), some.booleans()
)


@settings(max_examples=150, deadline=None)
@given(moments(), choices)
def test_any_moment_is_well_formed_markup_and_text(shown, choice):
    whole, live = page(shown, choice), parts(shown, choice)
    for markup in (whole, live.style, live.state, live.now, live.rest, *live.cards):
        Balance(markup)
    for drawing in re.findall("<svg.*?</svg>", whole):
        assert ET.fromstring(drawing).get("aria-label")
    assert as_text(monitor_view(shown, choice))
