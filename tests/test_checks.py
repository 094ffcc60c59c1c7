from jupyter_gpu.core.checks import Check


def test_a_check_is_json_with_every_key():
    assert Check("driver", "ok", "fine").as_json() == {
        "name": "driver",
        "status": "ok",
        "found": "fine",
        "fix": None,
    }
