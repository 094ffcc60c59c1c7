"""What the text of a cell tells, and that it is never told for certain where it is not."""

import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu.core.cell_text import exports_in_vain, freezing_call, how_set, sets

NAME = "CUDA_VISIBLE_DEVICES"

NAMED = {
    "torch.cuda.is_available()": "torch.cuda.is_available",
    "import torch\nprint(torch.cuda.is_available())": "torch.cuda.is_available",
    "device = 'cuda' if torch.cuda.is_available() else 'cpu'": "torch.cuda.is_available",
    "if torch.cuda.is_available():\n    model.cuda()": "torch.cuda.is_available",
    "while not torch.cuda.is_available():\n    pass": "torch.cuda.is_available",
    "assert torch.cuda.is_available(), why()": "torch.cuda.is_available",
    "x = torch.cuda.is_available() and model.cuda()": "torch.cuda.is_available",
    "try:\n    torch.cuda.init()\nexcept RuntimeError:\n    pass": "torch.cuda.init",
    "with torch.no_grad():\n    model.cuda()": ".cuda()",
    "for x in loader:\n    x.cuda()": ".cuda()",
    "moved = [x.cuda() for x in loader]": ".cuda()",
    "net = nn.Linear(2, 2).cuda()": ".cuda()",
    "model.cuda(torch.cuda.current_device())": "torch.cuda.current_device",
    "x = torch.ones(2).to('cuda:1')": '.to("cuda:1")',
    "x = y.to(dtype, 'cuda')": '.to("cuda")',
    "x = y.to(device='cuda')": '.to("cuda")',
    "x = y.to(torch.device('cuda:0'))": '.to("cuda:0")',
    "x = torch.zeros(3, device='cuda')": 'torch.zeros(device="cuda")',
    "x = torch.randn(3, device=torch.device('cuda'))": 'torch.randn(device="cuda")',
    "torch.nn.DataParallel(m)": "torch.nn.DataParallel",
    "from torch import nn\nnn.DataParallel(m)": "nn.DataParallel",
    "from accelerate import Accelerator\na = Accelerator()": "Accelerator",
    "import torch.cuda as tc\ntc.is_available()": "tc.is_available",
    "from torch.cuda import is_available as ok\nok()": "ok",
    "from torch import cuda\ncuda.is_available()": "cuda.is_available",
    "from numba import cuda\ncuda.select_device(0)": "cuda.select_device",
    "from jax import devices\ndevices()": "devices",
    "jax.devices()": "jax.devices",
    "import jax.numpy as jnp\njnp.zeros(3)": "jnp.zeros",
    "jnp.arange(3)": "jnp.arange",
    "import cupy as cp\ncp.cuda.runtime.getDeviceCount()": "cp.cuda.runtime.getDeviceCount",
    "tf.config.list_physical_devices('GPU')": "tf.config.list_physical_devices",
    "import tensorflow\ntensorflow.config.list_logical_devices()": "tensorflow.config.list_logical_devices",
    "@decorated(torch.cuda.is_available())\ndef f():\n    pass": "torch.cuda.is_available",
    "def f(x=torch.cuda.is_available()):\n    pass": "torch.cuda.is_available",
    "class A:\n    ok = torch.cuda.is_available()": "torch.cuda.is_available",
    "await run(torch.cuda.is_available())": "torch.cuda.is_available",
    "async with a:\n    torch.cuda.init()": "torch.cuda.init",
    "f'{torch.cuda.is_available()}'": "torch.cuda.is_available",
    "%matplotlib inline\n!nvidia-smi\ntorch.cuda.init()": "torch.cuda.init",
    "files = !ls\nx = %sql select\ntorch.cuda.init()": "torch.cuda.init",
    "torch.cuda?\ntorch.cuda.init()": "torch.cuda.init",
    "%%time\ntorch.cuda.init()": "torch.cuda.init",
    "\n\n%%capture out\ntorch.cuda.init()": "torch.cuda.init",
    "%%gpu -o seen\ntorch.cuda.init()": "torch.cuda.init",
    "'''\n%time\n'''\ntorch.cuda.init()": "torch.cuda.init",
    "  torch.cuda.init()": "torch.cuda.init",
    "print('n = %d' % 2)\ntorch.cuda.init()": "torch.cuda.init",
    "x = '\\d'; torch.cuda.init()": "torch.cuda.init",
    "x = 1 + \\\n  2\ntorch.cuda.init()": "torch.cuda.init",
}


@pytest.mark.parametrize("source", NAMED)
def test_the_call_that_initialises_cuda_is_named_as_it_is_written(source):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert freezing_call(source) == NAMED[source]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 1",
        "import torch",
        "torch.cuda.device_count()",
        "torch.cuda.is_initialized()",
        "torch.cuda.manual_seed(0)",
        "torch.device('cuda')",
        "torch.device(device='cuda')",
        "dict(device='cuda')",
        "TrainingArguments(device='cuda')",
        "DistributedDataParallel(m)",
        "model.to('cpu')",
        "name.to('cudagraph')",
        "x.to(device)",
        "torch.zeros(3, device='cpu')",
        "mycuda.is_available()",
        "get().cuda.is_available()",
        "import helpers as torch\ntorch.cuda.is_available()",
        "import torch.cpu as cuda\ncuda.is_available()",
        "from mine import DataParallel\nDataParallel(m)",
        "from . import devices\ndevices()",
        "torch.cuda.is_available",
        "check = torch.cuda.is_available",
        "# torch.cuda.is_available()",
        "'torch.cuda.is_available()'",
        "def f():\n    torch.cuda.is_available()",
        "async def f():\n    torch.cuda.is_available()",
        "f = lambda: torch.cuda.is_available()",
        "class A:\n    def f(self):\n        self.x.cuda()",
        "lazy = (x.cuda() for x in loader)",
        "if False:\n    torch.cuda.is_available()",
        "if wanted:\n    torch.cuda.is_available()",
        "if wanted:\n    a()\nelse:\n    torch.cuda.is_available()",
        "wanted and torch.cuda.is_available()",
        "x.cuda() if wanted else x",
        "while wanted:\n    torch.cuda.init()",
        "assert x, torch.cuda.get_device_name()",
        "try:\n    a()\nexcept E:\n    torch.cuda.init()",
        "match x:\n    case 1:\n        torch.cuda.init()",
        "if wanted:\n    model.cuda()\ntorch.cuda.is_available()",
        "prepare()\ntorch.cuda.is_available()",
        "prepare()\nimport wave\ntorch.cuda.is_available()",
        "%run prepare.py\ntorch.cuda.is_available()",
        "for i in []:\n    torch.cuda.is_available()\nprepare()",
        "[torch.cuda.is_available() for i in ()]\nprepare()",
        "with suppress(E):\n    1 / 0\n    torch.cuda.is_available()\nprepare()",
        "try:\n    1 / 0\n    torch.cuda.is_available()\nexcept E:\n    prepare()",
        "Accelerator()",
        "torch.cuda.is_available(",
        "def f(:\ntorch.cuda.is_available()",
        "%time torch.cuda.is_available()",
        "!python -c 'torch.cuda.is_available()'",
        "%%writefile x.py\ntorch.cuda.is_available()",
        "%%bash\ntorch.cuda.is_available()",
        "%%script python\ntorch.cuda.is_available()",
        "%%timeittt\ntorch.cuda.is_available()",
        "torch.cuda.is_available()\0",
        "torch.cuda.is_available()\n" + "x = " + "(" * 5000,
        "torch.cuda.is_available()\nx" + ".a" * 20_000,
        "x = " + "1 + " * 20_000 + "torch.cuda.is_available()",
    ],
)
def test_nothing_is_named_that_did_not_run_or_may_not_have_run(source):
    assert freezing_call(source) is None


CELL = "\n\nprint()\n1 / 0\ntorch.cuda.is_available()\n"


@pytest.mark.parametrize(
    ("line", "call"), [(None, True), (0, False), (1, False), (2, False), (3, True), (9, True)]
)
def test_nothing_behind_the_line_at_which_a_cell_stopped_is_named(line, call):
    assert (freezing_call(CELL, line=line) is not None) is call
    assert freezing_call(f"%%time\n{CELL}", line=9) is None


def test_of_a_torch_without_cuda_no_call_is_named():
    source = "print(torch.cuda.is_available())"
    assert freezing_call(source) == "torch.cuda.is_available"
    assert freezing_call(source, harmless=["torch"]) is None
    assert freezing_call(f"{source}\njax.devices()", harmless=["torch"]) == "jax.devices"


def test_the_device_is_named_as_it_is_written():
    assert freezing_call("x = torch.ones(3, device='cuda:1')") == 'torch.ones(device="cuda:1")'


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("os.environ['CUDA_VISIBLE'] = '1'", True),
        ('os.environ.update({"CUDA_VISIBLE": "1"})', True),
        ("os.environ.update(CUDA_VISIBLE='1')", True),
        ("os.environ.setdefault('CUDA_VISIBLE', '1')", True),
        ("os.putenv('CUDA_VISIBLE', '1')", True),
        ("%env CUDA_VISIBLE=1", True),
        ("%set_env CUDA_VISIBLE 1", True),
        ("print('CUDA_VISIBLE')", False),
        ("%env CUDA_VISIBLE", False),
        ("os.environ.get('CUDA_VISIBLE', '0')", False),
        ("os.getenv('CUDA_VISIBLE', 'x')", False),
        ("names = {'CUDA_VISIBLE': 1}", False),
        ("for n in ('CUDA_VISIBLE', 'X'): print(n)", False),
        ("os.environ['CUDA_VISIBLE'] == '1'", False),
        ("os.environ['MY_CUDA_VISIBLE'] = '1'", False),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '1'", False),
        ("%env CUDA_VISIBLE_DEVICES=1", False),
    ],
)
def test_it_is_told_whether_a_cell_sets_a_variable(source, found):
    assert sets(source, "CUDA_VISIBLE") is found


def test_a_call_that_a_variable_makes_harmless_is_passed_over():
    source = "torch.cuda.is_available()\nmodel.cuda()"
    assert freezing_call(source, harmless={"torch.cuda.is_available"}) == ".cuda()"
    renamed = "from torch import cuda\ncuda.is_available()"
    assert freezing_call(renamed, harmless={"torch.cuda.is_available"}) is None


@pytest.mark.parametrize("kind", ["code", "one line", "comment", "masks", "blank", "escapes"])
def test_a_huge_cell_is_quick(kind):
    source = {
        "code": "x = f(1)\n" * 200_000,
        "one line": "x = [" + "1, " * 16_000 + "]",
        "comment": "#" * 49_000,
        "masks": "a = " * 12_000 + f"\n!export {NAME}=1\n",
        "blank": " " * 24_000 + "\n" * 24_000,
        "escapes": "\\" * 49_000,
    }[kind]
    began = time.process_time()
    freezing_call(source)
    exports_in_vain(source + NAME)
    exports_in_vain((source + f"\n!export {NAME}=1")[-50_000:])
    how_set(source)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("source", "how"),
    [
        (f"%env {NAME}=1", "%env"),
        (f"  %env {NAME} 1", "%env"),
        (f"%set_env {NAME}=1", "%env"),
        (f"import os\n%env {NAME}=1", "%env"),
        (f"%env OTHER=1\nos.environ['{NAME}'] = '1'", "os.environ"),
        (f"%env {NAME}_2=1", "os.environ"),
        (f"os.environ['{NAME}'] = '1'", "os.environ"),
        (f"del os.environ['{NAME}']", "os.environ"),
        ("%gpu use 2", "%gpu use"),
        ("x = 1\n  %gpu use 0,1 --restart", "%gpu use"),
        ("%gpu map use", "code that it called"),
        ("load_dotenv()", "code that it called"),
        (f"# {NAME} is set by\nload_dotenv()", "code that it called"),
        ("", "code that it called"),
    ],
)
def test_it_is_told_how_a_cell_sets_the_variable(source, how):
    assert how_set(source) == how


@pytest.mark.parametrize(
    ("source", "vain"),
    [
        (f"!export {NAME}=1", True),
        (f"! export {NAME}=1", True),
        (f"  !export {NAME}=0,1", True),
        (f"!!export {NAME}=1", True),
        (f"!{NAME}=1", True),
        (f"!set {NAME}=1", True),
        (f"!export {NAME}=", True),
        (f"!export {NAME}='0, 1'", True),
        (f'!export {NAME}="1"', True),
        (f"!export {NAME}={{gpu}}", True),
        (f"!export {NAME}=$GPU", True),
        (f"!export {NAME}=1;", True),
        (f"!export {NAME}=1  # the second", True),
        (f"!export CUDA_DEVICE_ORDER=PCI_BUS_ID {NAME}=1", True),
        (f"!export {NAME}=1 OTHER=2", True),
        (f"import os\n!export {NAME}=1\nprint(1)", True),
        (f"%%time\n!export {NAME}=1", True),
        (f"if x:\n    !export {NAME}=1", True),
        (f"!export {NAME}=1 && python x.py", False),
        (f"!export {NAME}=1; python x.py", False),
        (f"!export {NAME}=1 | cat", False),
        (f"!export {NAME}=1 \\\n  && python x.py", False),
        (f"!{NAME}=1 python x.py", False),
        (f"!echo ${NAME}", False),
        (f"!echo export {NAME}=1", False),
        (f"!export {NAME}_OLD=1", False),
        (f"!export MY_{NAME}=1", False),
        (f"# !export {NAME}=1", False),
        (f"s = '!export {NAME}=1'", False),
        (f"s = '''\n!export {NAME}=1\n'''", False),
        (f"%%bash\nexport {NAME}=1", False),
        (f"%%bash\n!export {NAME}=1", False),
        (f"%%writefile a.ipynb\n!export {NAME}=1", False),
        (f"%env {NAME}=1", False),
        (f"os.environ['{NAME}'] = '1'", False),
        (f"!export {NAME}=1\ndef (", False),
        ("", False),
    ],
)
def test_an_export_is_in_vain_where_nothing_on_its_line_is_given_it(source, vain):
    assert exports_in_vain(source) is vain


@settings(deadline=None)
@given(st.text(alphabet="ab.()\n\t %!?'\"\\=#:,[]{}CUDA_", max_size=80))
def test_any_text_can_be_read(text):
    freezing_call(text)
    exports_in_vain(text + f"\n!export {NAME}=1")
    how_set(text)
