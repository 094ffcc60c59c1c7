"""A monitor that nobody runs any more: saved, converted and opened offline, it shows what it saw."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from kernels import KERNELSPECS

GIB = 2**30
BIN = Path(sys.executable).parent
CHROMIUM = Path("/usr/bin/chromium")
VIEW = "application/vnd.jupyter.widget-view+json"
BEFORE, AFTER = 12, 77

CHANGE = f"""
import json, os, pathlib
path = pathlib.Path(os.environ["JUPYTER_GPU_SIMULATE"])
machine = json.loads(path.read_text())
machine["gpus"][0]["memory_used_bytes"] = {AFTER * GIB}
path.with_suffix(".next").write_text(json.dumps(machine))
path.with_suffix(".next").replace(path)
"""
CELLS = ("%load_ext jupyter_gpu", "%gpu monitor", CHANGE)


def own_places(folder):
    """An environment with a machine of two devices, of which the first has 12 GiB in use."""
    gpu = {"name": "NVIDIA H200", "memory_total_bytes": 140 * GIB, "utilization_percent": 40}
    machine = {"gpus": [{**gpu, "memory_used_bytes": used * GIB} for used in (BEFORE, 3)]}
    (folder / "machine.json").write_text(json.dumps(machine), encoding="utf-8")
    places = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    return {
        **os.environ,
        **places,
        "JUPYTER_NO_CONFIG": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_GPU_LEASE_DIR": str(folder / "leases"),
        "JUPYTER_GPU_SIMULATE": str(folder / "machine.json"),
    }


@pytest.fixture(scope="module")
def visible_text():
    """What a person sees of an HTML file in a browser that reaches nothing but files."""
    if not CHROMIUM.exists():
        if os.environ.get("CI"):
            pytest.fail("CI looks at pages with Chromium: apt-get install chromium")
        pytest.skip("needs /usr/bin/chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        try:

            def look(path, script="document.body.innerText"):
                page = browser.new_page()
                page.goto(path.as_uri(), wait_until="domcontentloaded")
                found = page.evaluate(script)
                page.close()
                return found

            yield look
        finally:
            browser.close()


def notebook(folder, *sources, name="watch.ipynb", kernel="python3"):
    """Write a notebook of these cells; returns its path."""
    document = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources or CELLS],
        metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
    )
    nbformat.write(document, folder / name)
    return folder / name


def run(*words, environ):
    """Run a command of this environment; it has to succeed."""
    done = subprocess.run(
        [str(BIN / words[0]), *map(str, words[1:])],
        capture_output=True,
        text=True,
        env=environ,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def convert(path, exporter="html"):
    """Convert a notebook as nbconvert does; returns the file that it wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nbconvert's own
        import nbconvert

        text, about = nbconvert.get_exporter(exporter)().from_filename(str(path))
    target = path.with_suffix(about["output_extension"])
    target.write_text(text, encoding="utf-8")
    return target


def shown(document):
    """The outputs of a notebook that are shown, as their bundles."""
    return [
        output["data"]
        for cell in document.cells
        for output in cell.get("outputs", ())
        if output.output_type == "display_data"
    ]


def gib(number):
    return f"{number}.0"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A notebook that was run in a batch, and the page that nbconvert made of it."""
    folder = tmp_path_factory.mktemp("ran")
    path, environ = notebook(folder), own_places(folder)
    run("jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", path, environ=environ)
    return path


def test_nbconvert_runs_a_notebook_and_shows_the_last_numbers_offline(tmp_path, visible_text):
    path, environ = notebook(tmp_path), own_places(tmp_path)
    run("jupyter", "nbconvert", "--to", "html", "--execute", path, environ=environ)
    page = path.with_suffix(".html")
    assert "application/vnd.jupyter.widget" not in page.read_text(encoding="utf-8")
    text = visible_text(page)
    assert text.count("cuda:0") == text.count("cuda:1") == 1
    assert gib(AFTER) in text
    assert gib(BEFORE) not in text


def test_a_run_notebook_has_one_picture_of_the_end_and_no_widgets(ran):
    document = nbformat.read(ran, as_version=4)
    (bundle,) = shown(document)
    assert set(bundle) == {"text/html", "text/plain"}
    for text in bundle.values():
        assert gib(AFTER) in text
        assert gib(BEFORE) not in text
    assert "widgets" not in document.metadata


def test_papermill_leaves_the_picture_of_the_end_and_no_widgets(tmp_path):
    done, environ = tmp_path / "done.ipynb", own_places(tmp_path)
    run("papermill", notebook(tmp_path), done, "--no-progress-bar", environ=environ)
    document = nbformat.read(done, as_version=4)
    (bundle,) = shown(document)
    assert gib(AFTER) in bundle["text/html"]
    assert VIEW not in bundle
    assert "widgets" not in document.metadata


def test_markdown_and_scripts_are_readable(ran):
    markdown = convert(ran, "markdown").read_text(encoding="utf-8")
    assert gib(AFTER) in markdown
    assert gib(BEFORE) not in markdown
    script = convert(ran, "python").read_text(encoding="utf-8")
    compile(script, "watch.py", "exec")
    assert "cuda:0" not in script


def test_plain_text_shows_the_devices_within_eighty_columns(ran):
    (bundle,) = shown(nbformat.read(ran, as_version=4))
    lines = bundle["text/plain"].splitlines()
    assert any("cuda:0" in line and gib(AFTER) in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_notebook_with_an_evil_name_is_only_text(tmp_path, visible_text):
    shutil.copytree(KERNELSPECS, tmp_path / "share/kernels")
    name = "<img src=x onerror=\"document.title='taken'\"> <script>.ipynb"
    path = notebook(tmp_path, *CELLS[:2], name=name, kernel="pytorch-1gpu")
    environ = {
        **own_places(tmp_path),
        "JUPYTER_GPU_SIMULATE": "2xH200",
        "JUPYTER_PATH": str(tmp_path / "share"),
        "JPY_SESSION_NAME": str(path),
    }
    words = ("--to", "html", "--execute", "--output", "safe.html", path)
    run("jupyter", "nbconvert", *words, environ=environ)
    page = tmp_path / "safe.html"
    assert "<img src=x onerror=" in visible_text(page)
    assert visible_text(page, "document.querySelectorAll('.jgm img, .jgm script').length") == 0
    assert visible_text(page, "document.title") != "taken"


class FrontEnd:
    """Runs cells as JupyterLab does, and keeps their outputs as it saves them."""

    def __init__(self, client):
        self.client = client
        self.cells, self.sent, self.displays = [], {}, {}

    def run(self, source):
        """Run a cell and take in what comes until it has ended."""
        cell = nbformat.v4.new_code_cell(source)
        self.cells.append(cell)
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": True,
        }
        message = self.client.session.msg(
            "execute_request", content, metadata={"cellId": cell["id"], "trusted": True}
        )
        self.client.shell_channel.send(message)
        self.sent[message["header"]["msg_id"]] = cell
        mine = message["header"]["msg_id"]
        self.listen(
            lambda heard: (
                heard["msg_type"] == "status"
                and heard["content"]["execution_state"] == "idle"
                and heard["parent_header"].get("msg_id") == mine
            )
        )

    def listen(self, until):
        """Take in messages until one is what is waited for."""
        deadline = time.monotonic() + 60
        while True:
            heard = self.client.get_iopub_msg(timeout=max(0.01, deadline - time.monotonic()))
            self._take(heard)
            if until(heard):
                return heard

    def _take(self, heard):
        kind, content = heard["msg_type"], heard["content"]
        assert kind != "error", content
        identity = content.get("transient", {}).get("display_id")
        if kind == "display_data":
            output = nbformat.v4.new_output(
                "display_data", data=content["data"], metadata=content["metadata"]
            )
            self.sent[heard["parent_header"]["msg_id"]].outputs.append(output)
            if identity is not None:
                self.displays.setdefault(identity, []).append(output)
        elif kind == "update_display_data":
            for output in self.displays.get(identity, ()):
                output["data"] = nbformat.from_dict(content["data"])

    def open_view(self):
        """Say as a front end does that there is a view of the first widget."""
        (model,) = {bundle[VIEW]["model_id"] for bundle in shown(self) if VIEW in bundle}
        data = {"method": "update", "state": {"_view_count": 1}, "buffer_paths": []}
        message = self.client.session.msg("comm_msg", {"comm_id": model, "data": data})
        self.client.shell_channel.send(message)

    def save(self, path):
        """Write the notebook, without the state of its widgets."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
        document = nbformat.v4.new_notebook(cells=self.cells, metadata=metadata)
        nbformat.validate(document)
        nbformat.write(document, path)


@contextlib.contextmanager
def front_end(folder):
    """A front end with a person, and its kernel."""
    manager = KernelManager(kernel_name="python3")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    manager.start_kernel(env=own_places(folder), **quiet)
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        yield FrontEnd(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


@pytest.fixture(scope="module")
def early_and_saved(tmp_path_factory):
    """Notebooks with a live monitor as JupyterLab saves them: at once, and after a last cell."""
    folder = tmp_path_factory.mktemp("saved")
    with front_end(folder) as person:
        person.run(CELLS[0])
        person.run(CELLS[1])
        person.save(folder / "early.ipynb")
        person.open_view()
        person.run(CELLS[2])
        person.listen(
            lambda heard: (
                heard["msg_type"] == "update_display_data"
                and gib(AFTER) in heard["content"]["data"]["text/html"]
            )
        )
        person.save(folder / "watch.ipynb")
    return folder / "early.ipynb", folder / "watch.ipynb"


@pytest.fixture
def early(early_and_saved):
    """One that was saved before any other cell ran."""
    return early_and_saved[0]


@pytest.fixture
def saved(early_and_saved):
    """One that was saved after the last cell."""
    return early_and_saved[1]


def test_a_saved_notebook_has_the_live_view_and_the_last_picture(saved):
    first, last = shown(nbformat.read(saved, as_version=4))
    assert set(first) == {VIEW, "text/html", "text/plain"}
    assert gib(BEFORE) in first["text/html"]
    assert gib(AFTER) in last["text/html"]
    assert gib(AFTER) in last["text/plain"]


def test_a_saved_notebook_converts_to_a_page_with_the_last_state_once(saved, visible_text):
    page = convert(saved)
    markup = page.read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget" not in markup
    text = visible_text(page)
    assert text.count("cuda:0") == text.count("cuda:1") == 1
    assert gib(AFTER) in text
    assert gib(BEFORE) not in text


def test_a_notebook_saved_before_any_other_cell_shows_what_there_was(early, visible_text):
    script = (
        "document.querySelectorAll('details').forEach(one => one.open = true),"
        "document.body.innerText"
    )
    text = visible_text(convert(early), script)
    assert text.count("cuda:0") == 1
    assert gib(BEFORE) in text


def test_a_saved_notebook_is_small(saved):
    document = json.loads(saved.read_text(encoding="utf-8"))
    assert "widgets" not in document["metadata"]
    assert saved.stat().st_size < 64_000
