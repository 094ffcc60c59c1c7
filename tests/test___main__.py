from support_cli import finish


def test_the_package_can_be_run_as_a_module():
    code, out, err = finish("--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: jupyter gpu COMMAND")


def test_its_exit_code_is_the_commands():
    assert finish("nonsense")[0] == 2
