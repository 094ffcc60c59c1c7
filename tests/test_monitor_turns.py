import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.faces.monitor_turns import MESSAGE_BYTES, PATIENCE_TICKS, Turns, message_bytes


def test_a_message_is_its_value_as_json_has_it_and_what_stands_around():
    assert message_bytes("abc") == MESSAGE_BYTES + 5
    assert message_bytes('"°') == MESSAGE_BYTES + 6


def test_the_fast_numbers_go_always_and_the_rest_by_turns():
    turns = Turns(1000)
    sizes = {"now": 500, "card 0": 400, "card 1": 400, "card 2": 400}
    sent = [turns.choose(sizes) for _ in range(6)]
    assert sent[:3] == [("now", "card 0"), ("now", "card 1"), ("now", "card 2")]
    assert sent[3:] == sent[:3]


def test_what_is_up_to_date_again_waits_no_more():
    turns = Turns(1000)
    turns.choose({"now": 500, "card 0": 400, "card 1": 400})
    turns.choose({"now": 500, "card 0": 400})
    assert turns.choose({"now": 500, "card 1": 400, "card 0": 400}) == ("now", "card 1")


def test_as_many_go_as_fit():
    turns = Turns(1000)
    assert turns.choose({"now": 100, "card 0": 400, "card 1": 600, "card 2": 400}) == (
        "now", "card 0", "card 2",
    )  # fmt: skip


def test_state_and_button_go_before_every_card():
    turns = Turns(1000)
    cards = {"card 0": 300, "card 1": 300}
    turns.choose({"now": 900, **cards})
    assert turns.choose({"now": 100, **cards, "state": 300, "button": 300}) == (
        "now", "state", "button", "card 0",
    )  # fmt: skip
    assert turns.choose({"now": 900, "state": 500}) == ("state",)


def test_where_no_card_fits_beside_the_numbers_they_stay_behind_now_and_then():
    turns = Turns(1000)
    sizes = {"now": 900, **{f"card {n}": 400 for n in range(4)}}
    sent = [turns.choose(sizes) for _ in range(3 * PATIENCE_TICKS)]
    cards = [parts for parts in sent if parts != ("now",)]
    assert cards[:2] == [("card 0", "card 1"), ("card 2", "card 3")]
    assert len(cards) <= 3


def test_after_all_was_sent_nothing_waits():
    turns = Turns(1000)
    turns.choose({"now": 500, "card 0": 400, "card 1": 400})
    turns.all_sent()
    assert turns.choose({"now": 500, "card 0": 400, "card 1": 400}) == ("now", "card 0")


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["now", "state", "button", "title", *(f"card {n}" for n in range(9))]),
            st.integers(1, 1000),
        ),
        max_size=30,
    )
)
def test_a_tick_never_takes_more_than_its_bytes(ticks):
    turns = Turns(1000)
    for sizes in ticks:
        chosen = turns.choose(sizes)
        assert sum(sizes[part] for part in chosen) <= 1000
        assert len(set(chosen)) == len(chosen)
        assert bool(chosen) == bool(sizes)


@pytest.mark.parametrize("fast", [100, 600, 950])
def test_everybody_has_a_turn(fast):
    turns, left = Turns(1000), {f"card {n}" for n in range(8)}
    for _ in range(8 * (PATIENCE_TICKS + 1)):
        left -= set(turns.choose({"now": fast, **{f"card {n}": 399 for n in range(8)}}))
    assert left == set()


def test_what_is_larger_than_a_tick_goes_alone():
    turns = Turns(1000)
    assert turns.choose({"state": 1500, "card 0": 1200}) == ("state",)
