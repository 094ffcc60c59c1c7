"""Which torch a program's Python has, told by its installers' files: no Python is run here."""

import os
import sys
import venv

import pytest

from jupyter_gpu.adapters.torch_version import torch_version

NOTHING = {"PATH": "/nowhere"}


def put_torch(folder, version="2.13.0+cu130", kind="dist-info"):
    """Leave what an installer leaves; returns the folder."""
    metadata = folder / f"torch-{version}.{kind}"
    metadata.mkdir(parents=True)
    name = "METADATA" if kind == "dist-info" else "PKG-INFO"
    (metadata / name).write_text(f"Name: torch\nVersion: {version}\n")
    return folder


def put_python(prefix, name="python3.12"):
    """Leave an installation of Python under a prefix; returns its program."""
    program = prefix / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch(mode=0o755)
    return program


def put_venv(folder, home, *, system=False, version="3.12.4"):
    """Leave a virtual environment whose python is a link, as all are; returns that link."""
    (folder / "bin").mkdir(parents=True)
    link = folder / "bin" / "python"
    link.symlink_to(home)
    (folder / "pyvenv.cfg").write_text(
        f"home = {home.parent}\ninclude-system-site-packages = {str(system).lower()}\n"
        f"version = {version}\n"
    )
    (folder / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    return link


@pytest.fixture
def base(tmp_path):
    """A Python 3.12 that has torch 2.11.0."""
    program = put_python(tmp_path / "base")
    put_torch(tmp_path / "base" / "lib" / "python3.12" / "site-packages", "2.11.0")
    return program


def test_our_own_python_is_asked_itself():
    import importlib.metadata

    try:
        known = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        known = None
    assert torch_version(sys.executable, NOTHING) == known


def test_the_packages_of_an_installation_are_found(base):
    assert torch_version(str(base), NOTHING) == "2.11.0"


def test_a_real_virtual_environment_is_read_as_it_is_made(tmp_path):
    venv.create(tmp_path / "v", symlinks=True, with_pip=False)
    python = tmp_path / "v" / "bin" / "python"
    assert torch_version(str(python), NOTHING) is None
    (packages,) = (tmp_path / "v" / "lib").glob("python3*/site-packages")
    put_torch(packages)
    assert torch_version(str(python), NOTHING) == "2.13.0+cu130"


def test_a_virtual_environments_link_is_not_followed(tmp_path, base):
    link = put_venv(tmp_path / "v", base)
    assert torch_version(str(link), NOTHING) is None
    put_torch(tmp_path / "v" / "lib" / "python3.12" / "site-packages", "2.9.1")
    assert torch_version(str(link), NOTHING) == "2.9.1"


@pytest.mark.parametrize("own", [None, "2.9.1"])
def test_the_systems_packages_count_where_the_environment_includes_them(tmp_path, base, own):
    link = put_venv(tmp_path / "v", base, system=True)
    if own is not None:
        put_torch(tmp_path / "v" / "lib" / "python3.12" / "site-packages", own)
    assert torch_version(str(link), NOTHING) == (own or "2.11.0")


def test_an_environment_whose_home_is_no_path_has_only_its_own(tmp_path, base):
    link = put_venv(tmp_path / "v", base, system=True)
    (tmp_path / "v" / "pyvenv.cfg").write_text("include-system-site-packages = true\n\x00 = =\n")
    assert torch_version(str(link), NOTHING) is None


@pytest.mark.parametrize(
    "packages",
    [
        "lib/python3/dist-packages",
        "lib/python3.12/dist-packages",
        "lib64/python3.12/site-packages",
        "local/lib/python3.12/dist-packages",
    ],
)
def test_distributions_keep_packages_in_places_of_their_own(tmp_path, packages):
    python = put_python(tmp_path / "usr")
    (tmp_path / "usr" / "bin" / "python3").symlink_to("python3.12")
    for other in ("python3.11", "python3.12"):  # Debian may have several
        (tmp_path / "usr" / "lib" / other).mkdir(parents=True)
    put_torch(tmp_path / "usr" / packages)
    assert torch_version(str(python), NOTHING) == "2.13.0+cu130"
    assert torch_version(str(python.with_name("python3")), NOTHING) == "2.13.0+cu130"


def test_another_versions_packages_do_not_count(tmp_path):
    python = put_python(tmp_path / "usr")
    put_torch(tmp_path / "usr" / "lib" / "python3.11" / "site-packages")
    assert torch_version(str(python), NOTHING) is None


def test_a_python_without_a_number_is_that_of_the_only_folder_there_is(tmp_path):
    python = put_python(tmp_path / "env", "python")
    put_torch(tmp_path / "env" / "lib" / "python3.13" / "site-packages")
    assert torch_version(str(python), NOTHING) == "2.13.0+cu130"
    (tmp_path / "env" / "lib" / "python3.11").mkdir()
    assert torch_version(str(python), NOTHING) is None


def test_a_python_without_the_global_lock_has_a_folder_of_its_own(tmp_path):
    python = put_python(tmp_path / "env", "python3.13")
    put_torch(tmp_path / "env" / "lib" / "python3.13t" / "site-packages")
    assert torch_version(str(python), NOTHING) == "2.13.0+cu130"


def test_a_link_elsewhere_leads_to_the_installation(tmp_path, base):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "python3").symlink_to(base)
    assert torch_version(str(tmp_path / "mine" / "python3"), NOTHING) == "2.11.0"


def test_a_bare_name_is_looked_up_on_the_path_of_the_environment(base):
    assert torch_version("python3.12", {"PATH": str(base.parent)}) == "2.11.0"
    assert torch_version("python3.12", NOTHING) is None


def test_pythonpath_comes_first(tmp_path, base):
    put_torch(tmp_path / "more", "2.12.0")
    environ = {"PYTHONPATH": f"{os.pathsep}relative{os.pathsep}{tmp_path / 'more'}"}
    assert torch_version(str(base), environ) == "2.12.0"
    assert torch_version(sys.executable, environ) == "2.12.0"


@pytest.mark.parametrize(
    ("extra", "version"),
    [({}, "2.8.0"), ({"PYTHONNOUSERSITE": "1"}, "2.11.0"), ({"HOME": ""}, "2.11.0")],
)
def test_what_the_user_has_installed_comes_before_the_installations_own(
    tmp_path, base, extra, version
):
    put_torch(tmp_path / ".local" / "lib" / "python3.12" / "site-packages", "2.8.0")
    assert torch_version(str(base), {"HOME": str(tmp_path), **extra}) == version


def test_an_environment_of_its_own_has_none_of_the_users(tmp_path, base):
    put_torch(tmp_path / ".local" / "lib" / "python3.12" / "site-packages", "2.8.0")
    link = put_venv(tmp_path / "v", base)
    assert torch_version(str(link), {"HOME": str(tmp_path)}) is None


class TestMetadata:
    """What installers leave, whole and half."""

    @pytest.fixture
    def packages(self, base):
        folder = base.parent.parent / "lib" / "python3.12" / "site-packages"
        (folder / "torch-2.11.0.dist-info" / "METADATA").unlink()
        return folder

    def test_a_half_removed_package_is_none(self, base, packages):
        assert torch_version(str(base), NOTHING) is None

    def test_the_older_form_is_a_folder_or_a_file(self, base, packages):
        put_torch(packages, "2.1.0-py3.12", "egg-info")
        assert torch_version(str(base), NOTHING) == "2.1.0"
        (packages / "torch-2.0.1-py3.12.egg-info").write_text("Version: 2.0.1\n")
        assert torch_version(str(base), NOTHING) == "2.0.1"

    @pytest.mark.parametrize(("text", "version"), [("Version: 2.14.0a0\n", "2.14.0a0"), ("", None)])
    def test_a_checkout_states_its_version_inside(self, base, packages, text, version):
        (packages / "torch.egg-info").mkdir()
        (packages / "torch.egg-info" / "PKG-INFO").write_text(text)
        assert torch_version(str(base), NOTHING) == version

    @pytest.mark.parametrize("name", ["torchvision", "pytorch", "torch_geometric"])
    def test_packages_with_a_similar_name_are_others(self, base, packages, name):
        folder = packages / f"{name}-9.9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").touch()
        assert torch_version(str(base), NOTHING) is None


@pytest.mark.parametrize("program", ["R", "julia", "bash", "ipython", "python-config", "pythonw.x"])
def test_what_is_no_python_has_none(tmp_path, program):
    put_python(tmp_path / "usr", program)
    put_torch(tmp_path / "usr" / "lib" / "python3.12" / "site-packages")
    assert torch_version(str(tmp_path / "usr" / "bin" / program), NOTHING) is None


@pytest.mark.parametrize(
    "executable",
    [
        "",
        "/",
        ".",
        "python\0",
        "/\0/python",
        "~/python",
        "/dev/null/python3",
        "a" * 5000 + "/python",
    ],
)
def test_odd_paths_are_none_and_no_error(executable):
    assert torch_version(executable, {"PATH": "", "PYTHONPATH": "/\0:/dev/null"}) is None


def test_links_in_a_circle_are_none(tmp_path):
    (tmp_path / "python").symlink_to(tmp_path / "python3")
    (tmp_path / "python3").symlink_to(tmp_path / "python")
    assert torch_version(str(tmp_path / "python"), NOTHING) is None
