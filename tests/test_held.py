from jupyter_gpu.core.held import Held, Holder


def test_what_is_held_is_the_sum_of_what_names_hold_and_what_none_does():
    holders = (Holder(("x", "y"), 30, 1, "Tensor"), Holder(("model",), 12, 4, "Linear"))
    assert Held(holders, 2, 8).number_bytes == 50
    assert Held().number_bytes == 0


def test_a_holder_answers_with_all_its_names():
    assert Holder(("x", "y"), 30, 1, "Tensor").as_json() == {
        "names": ["x", "y"],
        "bytes": 30,
        "tensors": 1,
        "type": "Tensor",
    }
