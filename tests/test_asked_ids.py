import pytest

from jupyter_gpu.core.asked_ids import Asked, Frame, asked_ids

NAMES = {"n": 3, "device": "cuda:5", "ids": (1, 2), "text": "1,2"}


def cell(source, line=None, **names):
    names = {**NAMES, **names}
    return Frame(
        "__main__",
        "<module>",
        line or len(source.split("\n")),
        lambda name, steps: None if steps else names.get(name),
        source,
    )


def library(module, function, **names):
    def look(name, steps):
        if steps:
            return names.get(f"{name}.{steps[0][1]}")
        return names.get(name)

    return Frame(module, function, 1, look)


def first(*frames, message="", visible="2"):
    return next(asked_ids(message, frames, visible), None)


@pytest.mark.parametrize(
    ("source", "ids", "words"),
    [
        ("DataParallel(model, device_ids=[1, 2])", (1, 2), "device_ids=[1, 2]"),
        ("nn.DataParallel(model, [1, 2])", (1, 2), "device_ids=[1, 2]"),
        ("nn.DataParallel(model, device_ids=(1,))", (1,), "device_ids=[1]"),
        ("nn.DataParallel(model, device_ids=ids)", (1, 2), "device_ids=[1, 2]"),
        ("nn.DataParallel(model, device_ids=range(1, 3))", (1, 2), "device_ids=[1, 2]"),
        ("nn.DataParallel(model, device_ids='1')", (1,), "device_ids=1"),
        ("nn.DataParallel(model, device_ids=['cuda:1', 'cuda:2'])", (1, 2), "device_ids=[1, 2]"),
        ("data_parallel(model, x, [1])", (1,), "device_ids=[1]"),
        ("x.cuda(3)", (3,), ".cuda(3)"),
        ("x.cuda(n + 1)", (4,), ".cuda(4)"),
        ("x.to('cuda:3')", (3,), "cuda:3"),
        ("x.to(device)", (5,), "cuda:5"),
        ("x.to(f'cuda:{n}')", (3,), "cuda:3"),
        ("x.to(torch.device('cuda', n))", (3,), "cuda:3"),
        ("torch.zeros(2, device='cuda:3')", (3,), "cuda:3"),
        ("torch.zeros(2, device=n)", (3,), "device=3"),
        ("torch.cuda.set_device(int(os.environ['CUDA_VISIBLE_DEVICES']))", (2,), "set_device(2)"),
        ("with torch.cuda.device(3):\n    pass", (3,), "device(3)"),
        ("cupy.cuda.Device(3).use()", (3,), "Device(3)"),
        ("cuda.select_device(3)", (3,), "select_device(3)"),
        ("with tf.device('/GPU:3'):\n    pass", (3,), "/GPU:3"),
        ("pipeline('task', 'model', device)", (5,), "cuda:5"),
        ("YOLO().train(device='0,3')", (0, 3), "device=0,3"),
        ("load(path, map_location={'cuda:0': 'cuda:1'})", None, None),
        ("Trainer(devices=2)", None, None),
        ("Trainer(devices=[2])", (2,), "devices=[2]"),
        ("f(3)", None, None),
        ("x.cuda(-1)", None, None),
        ("x.cuda()", None, None),
        ("x.cuda(True)", None, None),
        ("x.cuda(f())", None, None),
    ],
)
def test_ids_are_read_from_the_failing_statement(source, ids, words):
    found = first(cell(source, 1))
    assert (None if found is None else found.ids) == ids
    if found is not None:
        assert found.words() == words


def test_only_the_failing_statement_counts():
    source = "x.cuda(7)\nif n:\n    for i in range(3):\n        y.cuda(\n            2)\nz.cuda(9)"
    assert first(cell(source, 5)).ids == (2,)
    assert first(cell(source, 2)) is None


def test_magics_and_shell_lines_around_it_do_not_matter():
    assert first(cell("%matplotlib inline\n!nvidia-smi\nx.cuda(3)", 3)).ids == (3,)
    assert first(cell("this is no Python\nx.cuda(3)", 2)) is None
    assert first(cell("", 1)) is None


def test_the_innermost_function_of_the_cells_counts_first():
    outer = cell("move(8)", 1)
    inner = cell("def move(k):\n    x.cuda(k)", 2, k=8)
    assert [one.ids for one in asked_ids("", (outer, inner), None)] == [(8,)]


def test_what_a_library_was_given_is_surer_than_the_text():
    found = list(
        asked_ids(
            "",
            (
                cell("train(model)"),
                library("transformers.trainer", "train", **{"self.device": "cuda:4"}),
                library("torch.nn.parallel.data_parallel", "__init__", device_ids=(1, 2)),
                library("torch.cuda", "get_device_properties", device=1),
            ),
            None,
        )
    )
    assert found[0].words() == "device_ids=[1, 2]"
    assert found[0].mended((0, 1)) == "DataParallel(model, device_ids=[0, 1])"
    assert [one.words() for one in found[1:]] == ["get_device_properties(1)", "cuda:4"]


@pytest.mark.parametrize(
    ("message", "ids", "mended"),
    [
        (
            "Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1.",
            (3,),
            'torch.load(…, map_location="cuda:0")',
        ),
        ("You requested gpu: [2, 3]\n But your machine only has: [0, 1]", (2, 3), "devices=[0]"),
        ("You requested GPUs: [1]\n But your machine only has: []", (1,), "devices=[0]"),
        ("Invalid CUDA 'device=2,3' requested. Use 'device=cpu'", (2, 3), "device=0"),
        ("Could not satisfy device specification '/device:GPU:3'.", (3,), 'tf.device("GPU:0")'),
    ],
)
def test_the_message_itself_is_surest(message, ids, mended):
    found = first(cell("f(3)"), message=message)
    assert found.ids == ids
    assert found.mended((0,)) == mended


def test_words_without_any_spelling():
    assert Asked((3,)).words() == "device 3"
    assert Asked((1, 2), "device_ids={}", listed=True).words((0, 1)) == "device_ids=[0, 1]"
