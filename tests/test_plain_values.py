import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.plain_values import Scope, dotted, value_of

NAMES = {"n": 3, "ids": (4, 2), "device": "cuda:1", "text": "5", "one": (7,)}


def look(name, steps):
    value = NAMES.get(name)
    for _, key in steps:
        value = value[key] if isinstance(value, tuple) and key in (-2, -1, 0, 1) else None
    if name == "args" and steps == ((".", "gpu"),):
        return 6
    if name == "config" and steps == (("[", "gpu"), ("[", 0)):
        return 8
    return value


def value(text, visible="2,5"):
    return value_of(ast.parse(text, mode="eval").body, Scope(look, visible))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("-1", -1),
        ("+2", 2),
        ("'cuda:3'", "cuda:3"),
        ("[0, 1]", (0, 1)),
        ("(1,)", (1,)),
        ("n", 3),
        ("n + 1", 4),
        ("n - 1", 2),
        ("2 * n", 6),
        ("7 // n", 2),
        ("7 % n", 1),
        ("ids", (4, 2)),
        ("ids[0]", 4),
        ("ids[-1]", 2),
        ("ids[:1]", (4,)),
        ("ids + [1]", (4, 2, 1)),
        ("args.gpu", 6),
        ("config['gpu'][0]", 8),
        ("f'cuda:{n}'", "cuda:3"),
        ("f'{device}'", "cuda:1"),
        ("'cuda:%d' % n", "cuda:3"),
        ("'cuda:%s' % (n,)", "cuda:3"),
        ("'cuda:' + text", "cuda:5"),
        ("'cuda:' + str(n)", "cuda:3"),
        ("'cuda:{}'.format(n)", "cuda:3"),
        ("int(text)", 5),
        ("range(2)", (0, 1)),
        ("list(range(1, 3))", (1, 2)),
        ("[i + 1 for i in range(2)]", (1, 2)),
        ("(m := 4)", 4),
        ("torch.device('cuda', n)", "cuda:3"),
        ("torch.device('cuda:2')", "cuda:2"),
        ("os.environ['CUDA_VISIBLE_DEVICES']", "2,5"),
        ("os.environ.get('CUDA_VISIBLE_DEVICES', '0')", "2,5"),
        ("os.getenv('CUDA_VISIBLE_DEVICES')", "2,5"),
        ("[int(i) for i in os.environ['CUDA_VISIBLE_DEVICES'].split(',')]", (2, 5)),
        ("list(map(int, os.environ['CUDA_VISIBLE_DEVICES'].split(',')))", (2, 5)),
        ("os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0]", "2"),
    ],
)
def test_what_can_be_told_from_the_text_and_plain_names_is(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "unknown",
        "f()",
        "n.real",
        "True",
        "None",
        "1.5",
        "2 ** 900000000",
        "7 // 0",
        "7 % 0",
        "10000000000000000000000 * 3",
        "'a' * 900000000",
        "'%999999999d' % 3",
        "'cuda:{0!r}'.format(n)",
        "f'{n:>9999999}'",
        "ids[9]",
        "ids[x]",
        "[i for i in ids if f(i)]",
        "[i for i in unknown]",
        "range(0, 1, 0)",
        "range(unknown)",
        "lambda: 3",
        "a if b else c",
        "int('three')",
        "int(ids)",
        "os.environ['LOCAL_RANK']",
        "[f(), 1]",
        "{**a}",
        "map(f, ids)",
        "text.split('')",
    ],
)
def test_what_cannot_is_unknown(text):
    assert value(text) is None


def test_the_variable_that_is_not_set_is_unknown():
    assert value("int(os.environ['CUDA_VISIBLE_DEVICES'])", None) is None


def test_a_long_range_is_cut_and_a_deep_text_is_unknown():
    assert len(value("range(10**0, 1000000)") or ()) in (0, 64)
    assert len(value("range(1000000)")) == 64
    assert value("-" * 90 + "1") is None


def test_a_name_with_dots_is_read_as_it_stands():
    assert dotted(ast.parse("torch.cuda.set_device", mode="eval").body) == "torch.cuda.set_device"
    assert dotted(ast.parse("f().cuda", mode="eval").body) == ".cuda"


@given(
    st.recursive(
        st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3), max_leaves=8
    )
)
def test_any_list_of_numbers_and_texts_comes_to_itself_or_is_unknown(made):
    def as_tuple(x):
        return tuple(map(as_tuple, x)) if isinstance(x, list) else x

    assert value(repr(made)) in (as_tuple(made), None)
