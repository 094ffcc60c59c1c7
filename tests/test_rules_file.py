"""The system file of rules: which file counts, what is not believed, and the line of an error."""

import grp
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.rules_file import (
    RULES_PATH,
    RULES_SIZE_LIMIT,
    find_rules_path,
    groups_of,
    person,
    read_rules,
)
from jupyter_gpu.core.rules import Rules, RulesError

EXAMPLE = """\
max_devices_per_user = 2        # a comment
show_notebooks = "own"
default_wait = "30s"

[groups.students]
max_devices_per_user = 1
[users.alice]
max_devices_per_user = 4

[[reserved]]
devices = [
  6,
  7,
]
users = ["alice"]
"""


class File:
    """A file of rules that JUPYTER_GPU_CONFIG names, and what reading it gives."""

    def __init__(self, folder, kind="given"):
        self.path = folder / "rules.toml"
        self.place = Place(folder / "leases", kind)
        self.environ = {"JUPYTER_GPU_CONFIG": str(self.path)}

    def write(self, text):
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self

    def read(self):
        return read_rules(self.place, self.environ)

    def error(self):
        with pytest.raises(RulesError) as caught:
            self.read()
        text = str(caught.value)
        assert text.startswith("No GPU is granted: the file of rules cannot be used.\n")
        assert str(self.path) in text.splitlines()[1]
        assert text.endswith("\nTell the administrator of this machine, who can mend it.")
        return caught.value


@pytest.fixture
def file(tmp_path):
    return File(tmp_path)


class Machine(File):
    """The machine's own file, below a folder that stands for the root of the file system."""

    def __init__(self, root):
        self.place = Place(root / "run/jupyter-gpu", "system")
        self.path = root / "etc/jupyter-gpu.toml"
        self.path.parent.mkdir()
        self.environ = {}

    def write(self, text, mode=0o644):
        super().write(text)
        self.path.chmod(mode)
        return self


@pytest.fixture
def machine(lease_directory, needs_root):
    return Machine(lease_directory.parent)


class TestWhichFileCounts:
    def test_on_the_machines_own_place_it_is_the_one_in_etc(self, machine):
        elsewhere = {"JUPYTER_GPU_CONFIG": "/nowhere/rules.toml"}
        assert find_rules_path(machine.place, {}) is None
        assert read_rules(machine.place, elsewhere) == Rules()
        machine.write(EXAMPLE)
        assert find_rules_path(machine.place, elsewhere) == machine.path
        found = read_rules(machine.place, elsewhere)
        assert found.source == str(machine.path)
        assert found.for_person("alice", ()).max_devices == 4

    def test_the_machines_own_place_by_another_name_is_the_same(self, tmp_path):
        system, environ = tmp_path / "leases", {"JUPYTER_GPU_CONFIG": "/nowhere"}
        system.mkdir()
        (tmp_path / "link").symlink_to(system)
        for path in (system, tmp_path / "link", tmp_path / "link/../leases"):
            found = find_rules_path(Place(path, "given"), environ, system=system)
            assert found == (RULES_PATH if os.path.lexists(RULES_PATH) else None)
        for path in (tmp_path, tmp_path / "missing"):
            found = find_rules_path(Place(path, "given"), environ, system=system)
            assert found == Path("/nowhere")

    @pytest.mark.parametrize("kind", ["given", "shared", "simulated"])
    def test_elsewhere_the_variable_names_it(self, kind, tmp_path):
        file = File(tmp_path, kind).write(EXAMPLE)
        assert find_rules_path(file.place, file.environ) == file.path
        assert file.read().show_notebooks == "own"

    @pytest.mark.parametrize("kind", ["given", "shared"])
    def test_elsewhere_the_one_in_etc_counts_without_it(self, kind, tmp_path):
        there = RULES_PATH if os.path.lexists(RULES_PATH) else None
        for environ in ({}, {"JUPYTER_GPU_CONFIG": ""}):
            assert find_rules_path(Place(tmp_path, kind), environ) == there

    def test_a_simulated_machine_knows_only_the_variable(self, tmp_path):
        assert find_rules_path(Place(tmp_path, "simulated"), {}) is None
        assert read_rules(Place(tmp_path, "simulated"), {}) == Rules()

    @pytest.mark.parametrize("path", ["rules.toml", "./rules.toml", "~/rules.toml", "/a\0b"])
    def test_the_variable_needs_an_absolute_path(self, file, path):
        with pytest.raises(RulesError, match="JUPYTER_GPU_CONFIG needs an absolute path"):
            read_rules(file.place, {"JUPYTER_GPU_CONFIG": path})

    def test_a_missing_file_is_an_error_where_the_variable_names_it(self, file):
        words = "There is no such file, and JUPYTER_GPU_CONFIG names it."
        assert file.error().found == words
        file.path.symlink_to("nothing")
        assert file.error().found == words
        file.environ = {"JUPYTER_GPU_CONFIG": str(file.path / "below")}
        file.path = file.path / "below"
        assert file.error().found == words


class TestTheMachinesFile:
    @pytest.mark.parametrize(("uid", "mode"), [(65534, 0o644), (0, 0o664), (0, 0o646), (0, 0o666)])
    def test_nobody_else_may_change_it(self, machine, uid, mode):
        machine.write(EXAMPLE, mode)
        os.chown(machine.path, uid, -1)
        error = machine.error()
        assert error.found == (
            "Others than root can change it. Look at what it says, then run\n"
            f"  sudo chown root {machine.path} && sudo chmod 644 {machine.path}"
        )
        os.chown(machine.path, 0, -1)
        machine.path.chmod(0o600)
        assert machine.read().show_notebooks == "own"

    @pytest.mark.parametrize("target", ["real", "nothing"])
    def test_a_link_is_not_followed(self, machine, target):
        (machine.path.parent / "real").write_text(EXAMPLE)
        machine.path.symlink_to(target)
        assert machine.error().found == "It is a symbolic link: put the file itself there."

    def test_what_others_may_not_read_is_said_to_them(self, machine, program):
        machine.write(EXAMPLE, 0o600)
        machine.path.parent.chmod(0o755)
        code = f"""
from pathlib import Path
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.rules_file import read_rules
import importlib, codecs
input()
try:
    read_rules(Place(Path({str(machine.place.directory)!r}), "system"), {{}})
except Exception as error:
    print(type(error).__name__, str(error).splitlines())
"""
        reader = program(code, uid=65534)
        said = reader.tell("now")
        assert said.startswith("RulesError ")
        assert "It may not be read by everybody, and has to be. Run" in said
        assert f"sudo chmod 644 {machine.path}" in said


class TestWhatIsNotBelieved:
    @pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
    @pytest.mark.parametrize("linked", [False, True])
    def test_only_a_plain_file_is_read(self, file, kind, linked):
        target = file.path.with_name("target") if linked else file.path
        if kind == "directory":
            target.mkdir()
        elif kind == "pipe":
            os.mkfifo(target)
        else:
            target.symlink_to("/dev/zero")
        if linked:
            file.path.symlink_to(target)
        assert file.error().found == "It is not a plain file."

    def test_a_link_that_the_variable_names_is_followed(self, file):
        file.path.with_name("real").write_text(EXAMPLE)
        file.path.symlink_to("real")
        assert file.read().show_notebooks == "own"

    def test_size_has_a_limit(self, file):
        comment = "#" * (RULES_SIZE_LIMIT - len(EXAMPLE) - 1)
        file.write(f"{EXAMPLE}{comment}\n")
        assert file.read().show_notebooks == "own"
        file.write(f"{EXAMPLE}{comment}#\n")
        assert file.error().found == "It is larger than 1 MiB, which rules never are."
        os.truncate(file.path, 2**40)
        assert file.error().found == "It is larger than 1 MiB, which rules never are."

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            ("[", 1, "This is not TOML: "),
            ("\n\nmax_devices_per_user = two\n", 3, "This is not TOML: Invalid value."),
            ("max_devices_per_user = 1\nmax_devices_per_user = 2\n", 2, "This is not TOML: "),
            ("max_devices_per_user = 1\r\nmax_devices_per_user = 2\r\n", 2, "This is not TOML: "),
            ("[users.alice]\n[users.bob]\n[users.alice]\n", 3, "This is not TOML: "),
            ('{"max_devices_per_user": 2}', 1, "This is not TOML: "),
            ('default_wait = """\n\n', 1, "This is not TOML: "),
            (b"\0", 1, "This is not TOML: "),
            (b"\x1b[2J", 1, "This is not TOML: "),
            (b"# \xe9\n", 1, "It is not UTF-8 text, as TOML is."),
            (b"\n\n# \xff\n", 3, "It is not UTF-8 text, as TOML is."),
            (EXAMPLE.encode("utf-16"), 1, "It is not UTF-8 text, as TOML is."),
            (f"a = {'[' * 100_000}", None, "Lists or tables in it are nested too deeply."),
            (f"max_devices_per_user = {'9' * 5000}", None, "A number in it is far too long."),
        ],
    )
    def test_what_is_not_toml_is_said_with_its_line(self, file, text, line, words):
        error = file.write(text).error()
        assert error.found.startswith(words)
        assert error.line == line
        assert "\x1b" not in str(error)

    @pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "\ufeff", "[groups]\n[users]\n"])
    def test_an_empty_file_is_no_rules(self, file, text):
        assert file.write(text).read() == Rules(source=str(file.path))

    def test_a_mark_at_the_beginning_and_other_line_ends_do_no_harm(self, file):
        text = "\ufeff" + EXAMPLE.replace("\n", "\r\n")
        assert file.write(text).read() == File.read(file.write(EXAMPLE))

    def test_it_is_read_anew_each_time(self, file):
        assert file.write('show_notebooks = "none"').read().show_notebooks == "none"
        assert file.write('show_notebooks = "own"').read().show_notebooks == "own"


class TestTheLineOfAnError:
    @pytest.mark.parametrize(
        ("old", "new", "line"),
        [
            ("per_user = 2 ", "per_user = -2 ", 1),
            ('"own"', '"mine"', 2),
            ('"30s"', '"soon"', 3),
            ("per_user = 1", "per_users = 1", 6),
            ("per_user = 4", 'per_user = """\nfour\n"""', 8),
            ("[users.alice]\n", "[users]\nalice = 3\n[users.bob]\n", 8),
            ("[users.alice]", "[user.alice]", 7),
            ("  7,", "  true,", 11),
            ("devices = [", "device = [", 11),
            ('users = ["alice"]', 'users = "alice"', 15),
            ('users = ["alice"]', "", 11),
            ('["alice"]\n', '["alice"]\nidle_shutdown = "8h"\n', 16),
            ('["alice"]\n', '["alice"]\n[[reserved]]\nusers = ["bob"]\n', 16),
            ('["alice"]\n', '["alice"]\n\n\n# far\nxyzzy = [\n1,\n2]', 19),
        ],
    )
    @pytest.mark.parametrize("ends", ["\n", "\r\n"])
    def test_it_is_where_the_statement_begins(self, file, old, new, line, ends):
        text = EXAMPLE.replace(old, new, 1).replace("\n", ends)
        found = file.write(text).error().line
        assert found == line

    def test_in_a_long_file_it_is_not_searched_for_long(self, file):
        many = "".join(f"[users.u{number}]\nmax_devices_per_user = 1\n" for number in range(300))
        assert file.write(f"{many}[users.v]\nlimit = 1\n{many.replace('.u', '.w')}").error().line
        long = "default_wait = [\n" + "1,\n" * 10_000 + "]\n"
        assert file.write(long).error().line in (None, 1)
        assert file.write("#\n" * 100_000 + "limit = 1\n").error().line is None


class TestPerson:
    def test_a_user_has_a_name_and_all_groups(self):
        user, groups = person(os.getuid())
        entry = pwd.getpwuid(os.getuid())
        assert user == entry.pw_name
        assert groups[0] == grp.getgrgid(entry.pw_gid).gr_name
        assert set(groups) == {
            grp.getgrgid(number).gr_name for number in os.getgrouplist(user, entry.pw_gid)
        }
        assert groups == groups_of(user)

    @pytest.mark.parametrize("uid", [2_000_000_011, 2**31, 2**40, -1])
    def test_a_user_without_a_name_goes_by_the_number(self, uid):
        assert person(uid) == (str(uid), ())

    @pytest.mark.parametrize("user", ["", "no such user here", "a\0b"])
    def test_a_name_that_nobody_has_is_in_no_group(self, user):
        assert groups_of(user) == ()

    def test_every_named_group_of_every_user_is_found(self):
        for entry in grp.getgrall():
            for member in entry.gr_mem:
                if groups_of(member):
                    assert entry.gr_name in groups_of(member)


def test_nothing_that_windows_lacks_is_imported_before_it_is_needed():
    code = """
import builtins, sys
for name in ("pwd", "grp", "fcntl"):
    sys.modules[name] = None  # importing it fails
import jupyter_gpu.core.rules, jupyter_gpu.adapters.rules_file
assert "tomllib" not in sys.modules and "tomli" not in sys.modules
print("ok")
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert child.stdout == "ok\n", child.stderr


DOCUMENT = Path(__file__).parent.parent / "docs/rules.md"


@pytest.mark.skipif(not DOCUMENT.exists(), reason="only the repository has the documents")
class TestTheDocument:
    def test_its_examples_are_rules(self, file):
        examples = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
        assert len(examples) == 3
        for example in examples:
            assert file.write(example).read() != Rules(source=str(file.path))

    def test_it_shows_an_error_as_it_is(self, file):
        text = DOCUMENT.read_text()
        (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
        error = file.write("\n\n\n\n[groups.students]\nmax_device_per_user = 1\n").error()
        assert str(error).replace(str(file.path), "/etc/jupyter-gpu.toml") == shown.rstrip()

    def test_it_names_every_key(self, file):
        keys = re.search(r"The keys here: (.*)\.", str(file.write("x = 1").error().found))[1]
        assert all(
            f"`{key}`" in DOCUMENT.read_text() or f"[{key}" in DOCUMENT.read_text()
            for key in keys.split(", ")
        )
