"""JupyterLab and Notebook 7 as a person has them: a real server, a real Chromium, a simulated machine.

A module imports the fixtures that it uses: ``site`` is one server and one browser for the module,
``lab`` and ``tree`` open a page for one test. Pictures of what was seen go to the folder that
``JUPYTER_GPU_ARTEFACTS`` names, else to one of pytest's own; with ``JUPYTER_GPU_PICTURES`` the
pictures of the documentation are drawn anew into that folder, at twice the size.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import leases_left, poll
from kernels import KERNELSPECS, leases
from support_server import TOKEN, Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Read here: the tests' environment is cleaned of such names.
ARTEFACTS = os.environ.get("JUPYTER_GPU_ARTEFACTS")
PICTURES = os.environ.get("JUPYTER_GPU_PICTURES")
GIB = 2**30
H200_BYTES = 150_754_820_096
SECONDS = 30
MILLISECONDS = 1000 * SECONDS
WIDE = (1250, 900)
_EVERY = 0.1  # seconds between two looks at a page, which has to work for each of them
SHOWN = "div.jupyter-gpu, .jgm"
_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
_EXTENSIONS = ("jupyterlab", "notebook", "jupyter_gpu.server")
_ARGUMENTS = (
    f"--ServerApp.jpserver_extensions={dict.fromkeys(_EXTENSIONS, True)}",
    "--ServerApp.terminals_enabled=False",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--KernelSpecManager.ensure_native_kernel=False",
)
_OURS = ("pytorch-cpu", "pytorch-1gpu", "pytorch-2gpus", "pytorch-quarter-gpu")
OTHER = "another"
# Errors of pages that stand without us too.
_NOT_OURS = (
    # ipywidgets' manager, for a notebook whose kernel was refused
    "Cannot read properties of null (reading 'kernel')",
    # Notebook, while it loads its settings
    "Cannot read properties of undefined (reading 'schema')",
    # Notebook's list of files, when the notebook that it has started a kernel for opens elsewhere
    "Disposed\n",
    # Notebook, after it has shown the dialog with these words
    "No 2 GPUs are free",
)

_BUSY = """
import pathlib, time
end = pathlib.Path(%r)
while not end.exists():
    time.sleep(0.02)
""".strip()
# Lab drops a run silently while the websocket is not open, although the indicator says idle.
_READY = """async seconds => {
  const deadline = Date.now() + 1000 * seconds;
  const soon = () => new Promise(done => setTimeout(done, 25));
  while (Date.now() < deadline) {
    const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
    const kernel = context?.session?.kernel;
    if (context?.isReady && kernel?.connectionStatus === 'connected') {
      const info = await Promise.race([kernel.info, soon().then(soon)]);
      if (info && kernel.status === 'idle') return kernel.id;
    }
    await soon();
  }
  const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
  throw new Error(`no kernel was ready: ${kernel?.connectionStatus}, ${kernel?.status}`);
}"""


def machine(count, *, used=0, load=0, changes=(), **more):
    """Describe a machine of H200s; ``changes`` are dicts of keys for the first ones."""
    gpus = [
        {
            "name": "NVIDIA H200",
            "uuid": f"GPU-{number:08x}-5d9e-4a86-9c04-{number:012x}",
            "memory_total_bytes": H200_BYTES,
            "memory_used_bytes": used,
            "utilization_percent": load,
            "temperature_celsius": 31 + number,
            "power_watts": 75.0 + number,
        }
        for number in range(count)
    ]
    for gpu, changed in zip(gpus, changes, strict=False):
        gpu.update(changed)
    return {"driver": "580.95.05", "gpus": gpus, **more}


def require_chromium():
    """Skip where there is no browser; in CI that is a failure."""
    if CHROMIUM is None:
        words = "Chromium is not installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


class Site:
    """A Jupyter server whose machine is a file, and the browser that looks at it."""

    def __init__(self, folder, browser, artefacts, *, environ=None, wait="300ms"):
        self.folder, self.artefacts = folder, artefacts
        self.busy = 0
        # One for all pages, so that they find the scripts of JupyterLab where the first left them.
        self.context = browser.new_context(
            viewport={"width": WIDE[0], "height": WIDE[1]},
            device_scale_factor=2 if PICTURES else 1,
        )
        self.context.set_default_timeout(MILLISECONDS)
        self.config = folder / "config"
        self.lease_directory = folder / "leases"
        self.description = folder / "machine.json"
        self.write(machine(4))
        for name in _OURS:
            shutil.copytree(KERNELSPECS / name, folder / "share" / "kernels" / name)
        for name, settings in _SETTINGS.items():
            path = self.config / "lab/user-settings/@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings), encoding="utf-8")
        (folder / "rules.toml").touch()
        self.environ = {
            "JUPYTER_GPU_LEASE_DIR": str(self.lease_directory),
            "JUPYTER_GPU_SIMULATE": str(self.description),
            "JUPYTER_GPU_CONFIG": str(folder / "rules.toml"),
            "JUPYTER_NO_CONFIG": None,  # with it, no settings of Lab would be found either
            "JUPYTER_CONFIG_DIR": str(self.config),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_PATH": str(folder / "share"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self.environ.update(environ or {})
        self.environ = {name: value for name, value in self.environ.items() if value is not None}
        allowed = f"--KernelSpecManager.allowed_kernelspecs={ {*_OURS, OTHER} }"
        arguments = (*_ARGUMENTS, allowed, f"--GPUProvisioner.wait={wait}")
        self.server = Server(folder, arguments=arguments, **self.environ)

    @contextlib.contextmanager
    def another_kernelspec(self, title, *, like):
        """Offer one more entry for a while."""
        target = self.folder / "share" / "kernels" / OTHER
        shutil.copytree(KERNELSPECS / like, target)
        spec = json.loads((target / "kernel.json").read_text(encoding="utf-8"))
        spec["display_name"] = title
        (target / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        try:
            yield
        finally:
            shutil.rmtree(target)

    def write(self, description):
        """Replace the machine in one step."""
        fresh = self.description.with_suffix(".next")
        fresh.write_text(json.dumps(description), encoding="utf-8")
        fresh.replace(self.description)

    def address(self, path):
        return f"http://127.0.0.1:{self.server.port}/{path}"

    def sessions(self):
        return self.server.get("sessions").body

    def clear(self):
        """End all kernels, take the notebooks away, and give the machine back as it was."""
        for session in self.sessions():
            self.server.request("DELETE", f"sessions/{session['id']}")
        for kernel in self.server.get("kernels").body:
            self.server.request("DELETE", f"kernels/{kernel['id']}")
        for path in self.server.root.glob("*.ipynb"):
            path.unlink()
        assert leases_left(self.lease_directory / "lock") == []
        self.write(machine(4))

    @contextlib.contextmanager
    def without_widgets(self):
        """Serve a JupyterLab that lacks ipywidgets' extension for a while."""
        path = self.config / "labconfig" / "page_config.json"
        path.parent.mkdir(exist_ok=True)
        off = {"@jupyter-widgets/jupyterlab-manager": True}
        path.write_text(json.dumps({"disabledExtensions": off}), encoding="utf-8")
        try:
            yield
        finally:
            path.unlink()

    @contextlib.contextmanager
    def window(self, name):
        """Open a window for one test; whatever leaves this machine, or an error, fails the test."""
        window = Window(self, self.context, name)
        try:
            yield window
        finally:
            window.close()
        assert window.strayed == [], "requests for other machines"
        errors = [one for one in window.errors if not any(map(one.startswith, _NOT_OURS))]
        assert errors == [], f"errors of the page: {errors}"


class Window:
    """One person's browser window, all of whose pages are watched."""

    def __init__(self, site, context, name):
        self.site, self.context, self.name = site, context, name
        self.strayed, self.errors = [], []
        self._shots = 0
        context.on("page", self._watch)
        self.page = context.new_page()

    def _watch(self, page):
        page.on("request", lambda request: self._note(request.url))
        page.on("websocket", lambda socket: self._note(socket.url))
        page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))

    def _note(self, url):
        parts = urlsplit(url)
        here = parts.scheme in ("data", "blob", "about") or parts.hostname == "127.0.0.1"
        if not here:
            self.strayed.append(url)

    def close(self):
        """Take a last picture of each page, and close them."""
        for page in self.context.pages:
            self.shot("end", page=page)
            page.close()
        self.context.remove_listener("page", self._watch)

    def shot(self, what, *, clip=None, page=None):
        """Write a picture of the page among the artefacts of the test run."""
        self._shots += 1
        path = self.site.artefacts / f"{self.name}-{self._shots}-{what}.png"
        (page or self.page).screenshot(path=path, **({} if clip is None else {"clip": clip}))
        return path

    def open_lab(self, path=""):
        """Open JupyterLab, without what an earlier page has left open."""
        self.page.goto(self.site.address(f"lab{path}?reset&token={TOKEN}"))
        self.page.locator(".jp-LauncherCard, .jp-Notebook").first.wait_for()
        return self

    def open_tree(self):
        """Open the file list of Notebook 7."""
        self.page.goto(self.site.address(f"tree?token={TOKEN}"))
        self.page.get_by_role("menuitem", name="File", exact=True).wait_for()
        return self

    def launch(self, title):
        """Click an entry in the launcher's part for notebooks."""
        section = self.page.locator(".jp-Launcher-section", has_text="Notebook").first
        section.locator(".jp-LauncherCard", has_text=title).click()
        return Notebook(self, self.page)

    def new_launcher(self):
        """Open one more launcher by the button beside the tabs."""
        self.page.locator(".lm-TabBar-addButton >> visible=true").first.click()

    def pick_new(self, title):
        """Choose an entry of the menu New of Notebook 7; the notebook opens in another tab."""
        self.page.get_by_text("New", exact=True).click()
        with self.context.expect_page() as opened:
            self.page.locator(".lm-Menu-item", has_text=title).click()
        return Notebook(self, opened.value)

    def dialog(self, page=None):
        """The dialog that is open, as soon as there is one."""
        dialog = (page or self.page).locator(".jp-Dialog").last
        dialog.wait_for()
        return dialog


class Notebook:
    """An open notebook: what one types and clicks in it."""

    def __init__(self, window, page):
        self.window, self.page, self.site = window, page, window.site

    def ready(self):
        """Wait until its kernel listens, and return the kernel's id."""
        return self.page.evaluate(_READY, SECONDS)

    @property
    def path(self):
        return self.page.evaluate("window.jupyterapp.shell.currentWidget.context.path")

    @property
    def kernel_id(self):
        return self.page.evaluate(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
        )

    @property
    def kernel_pid(self):
        return self.site.server.kernel_process(self.kernel_id)

    def cell(self, number):
        return Cell(self, number)

    def begin(self, code):
        """Type code into the last cell and run it; returns the cell, which may run still."""
        count = self.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length")
        cell = self.cell(count - 1)
        cell.place.locator(".cm-content").click()
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Shift+Enter")
        return cell

    def run(self, code):
        """Run code in the last cell, and return the cell when it is done."""
        return self.begin(code).done()

    @contextlib.contextmanager
    def busy(self):
        """A cell that runs as long as the block; gives it."""
        self.site.busy += 1
        end = self.site.folder / f"end-{self.site.busy}"
        cell = self.begin(_BUSY % str(end))
        cell.prompt(r"\[\*\]:")
        yield cell
        end.touch()
        cell.done()

    def run_again(self, number):
        """Run a cell that is there."""
        cell = self.cell(number)
        cell.place.locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")
        return cell.done()

    def menu(self, name, item):
        """Choose an item of a menu."""
        self.page.locator(".lm-MenuBar-item", has_text=name).first.click()
        self.page.locator(".lm-Menu-item", has_text=item).first.click()

    def save(self):
        self.page.evaluate("window.jupyterapp.shell.currentWidget.context.save()")

    def command(self, name, **arguments):
        """Have the application do what one of its menus or buttons would."""
        self.page.evaluate(
            "([name, words]) => { window.jupyterapp.commands.execute(name, words) }",
            [name, arguments],
        )

    def restart(self):
        """Restart the kernel by the toolbar's button and its question."""
        self.page.locator("[data-command='notebook:restart-kernel'] >> visible=true").first.click()
        self.window.dialog(self.page).locator(".jp-mod-accept").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")

    def change_kernel(self, title):
        """Choose another entry in the dialog that the kernel's name opens."""
        self.page.locator(".jp-KernelName").first.click()
        dialog = self.window.dialog(self.page)
        dialog.locator("select").select_option(label=title)
        dialog.locator(".jp-mod-accept").click()

    def theme(self, name):
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
        )
        light = str("Light" in name).lower()
        self.page.locator(f"body[data-jp-theme-light='{light}']").wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")


class Cell:
    """One cell of an open notebook, by its place."""

    def __init__(self, notebook, number):
        self.notebook, self.number = notebook, number
        panel = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.place = panel.locator(f".jp-Notebook-cell[data-windowed-list-index='{number}']")
        self.output = self.place.locator(".jp-Cell-outputArea")

    def prompt(self, pattern):
        """Wait until what stands before its input is this."""
        prompt = self.place.locator(".jp-InputPrompt")
        poll(
            lambda: re.fullmatch(pattern, prompt.inner_text().strip()),
            within=SECONDS,
            every=_EVERY,
        )
        return self

    def done(self):
        """Wait until it has run."""
        return self.prompt(r"\[\d+\]:")

    @property
    def text(self):
        """What its output shows, one space between words."""
        return " ".join(self.output.inner_text().split())

    def says(self, *words, within=SECONDS):
        """Wait until its output shows all words; returns it."""
        state = {}

        def shown():
            state["text"] = self.text
            return all(word in state["text"] for word in words)

        try:
            poll(shown, within=within, every=_EVERY)
        except pytest.fail.Exception:
            pytest.fail(f"{words} not within {within} s in: {state.get('text')}")
        return self

    def counts(self, word, times, *, within=SECONDS):
        """Wait until its output shows a word so many times."""
        poll(lambda: self.text.count(word) == times, within=within, every=_EVERY)

    def shot(self, what):
        """A picture of the cell's output among the artefacts."""
        window = self.notebook.window
        window._shots += 1
        self.output.screenshot(
            path=window.site.artefacts / f"{window.name}-{window._shots}-{what}.png"
        )


def picture(name, page, place=None, *, clip=None):
    """Draw a picture of the documentation anew where that is asked for."""
    if not PICTURES:
        return
    from PIL import Image

    data = page.screenshot(clip=clip) if place is None else place.screenshot()
    drawn = Image.open(io.BytesIO(data)).convert("RGB")
    few = drawn.quantize(128, dither=Image.Dither.NONE)
    few.save(Path(PICTURES) / f"{name}.png", optimize=True)


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    """The folder for this run's pictures."""
    if ARTEFACTS is None:
        return tmp_path_factory.mktemp("artefacts")
    folder = Path(ARTEFACTS)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser():
    """A Chromium that reaches no machine but this one, neither by name nor by address."""
    require_chromium()
    from playwright.sync_api import sync_playwright

    flags = [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--proxy-server=http://127.0.0.1:9",  # nobody listens there
        "--proxy-bypass-list=127.0.0.1",
        "--disable-dev-shm-usage",
        *(["--no-sandbox"] if os.getuid() == 0 else []),
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def a_site(browser, artefacts, **options):
    """Start a server of its own, and end it."""
    folder = Path(tempfile.mkdtemp(prefix="jupyter-gpu-test-"))
    folder.chmod(0o755)
    try:
        site = Site(folder, browser, artefacts, **options)
        with site.server:
            yield site
        site.context.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def kept_site(browser, artefacts):
    """The server of a module."""
    with a_site(browser, artefacts) as site:
        yield site


@pytest.fixture
def site(kept_site, monkeypatch):
    """The module's server with four free H200s; this process is on its machine too."""
    for name in ("JUPYTER_GPU_LEASE_DIR", "JUPYTER_GPU_SIMULATE", "JUPYTER_GPU_CONFIG"):
        monkeypatch.setenv(name, kept_site.environ[name])
    yield kept_site
    kept_site.clear()


@pytest.fixture
def lab(site, request):
    """A window with JupyterLab, which shows its launcher."""
    with site.window(request.node.name) as window:
        yield window.open_lab()


@pytest.fixture
def tree(site, request):
    """A window with the file list of Notebook 7."""
    with site.window(request.node.name) as window:
        yield window.open_tree()


def the_lease():
    """The one lease of the machine, as soon as there is one."""
    found = poll(lambda: [lease for lease in [leases()] if len(lease) == 1])
    return found[0][0]
