"""A block ships the names that it may read before it has bound them, and no others."""

from __future__ import annotations

import ast

import pytest

from nnterp_vllm_core.names import needed

CASES = {
    "a name bound first": ("x = 1\ny = x", set()),
    "a name read first": ("y = x", {"x"}),
    "bound from its own old value": ("x = x + 1", {"x"}),
    "added to": ("x += 1", {"x"}),
    "a list bound, then appended to": ("out = []\nout.append(model.a)", {"model"}),
    "an item assigned": ("out[0] = a", {"out", "a"}),
    "an attribute assigned": ("block.value = new", {"block", "new"}),
    "a loop's own variable": ("for i in items:\n    print(i)", {"items", "print"}),
    "bound in a loop that may not run": ("for i in items:\n    x = i\ny = x", {"items", "x"}),
    "bound in a loop, read in it after": ("for i in items:\n    x = i\n    y = x", {"items"}),
    "bound on one path": ("if flag:\n    x = 1\ny = x", {"flag", "x"}),
    "bound on both paths": ("if flag:\n    x = 1\nelse:\n    x = 2\ny = x", {"flag"}),
    "bound in a while": ("while go():\n    x = 1\ny = x", {"go", "x"}),
    "bound by with": ("with open(p) as f:\n    f.read()", {"open", "p"}),
    "bound by try": ("try:\n    x = f()\nexcept E as e:\n    print(e)\ny = x", {"f", "E", "print", "x"}),
    "unpacked": ("(a, *b), c = pair\nd = a, b, c", {"pair"}),
    "an unpacked item": ("a, out[i] = pair", {"pair", "out", "i"}),
    "a walrus": ("y = (x := f()) + x", {"f"}),
    "a walrus that may not run": ("a and (x := 1)\ny = x", {"a", "x"}),
    "deleted": ("x = 1\ndel x\ny = x", {"x"}),
    "a comprehension's own variable": ("y = [i * k for i in items if i]", {"items", "k"}),
    "a comprehension's variable afterwards": ("y = [i for i in items]\nz = i", {"items", "i"}),
    "a lambda's argument": ("f = lambda a: a + b", {"b"}),
    "a function's own names": ("def f(a, b=c):\n    d = a\n    return d + e\nf(1)", {"c", "e"}),
    "a recursive function": ("def f(n):\n    return f(n - 1)", set()),
    "a class": ("class C(Base):\n    x = y\nC()", {"Base", "y"}),
    "an import": ("import os.path as p\nfrom a import b\np, b", set()),
    "a match": ("match x:\n    case [a, *b]:\n        c = a, b\n", {"x"}),
    "an f-string": ("y = f'{x:{width}}'", {"x", "width"}),
    "a decorator": ("@d\ndef f(): pass", {"d"}),
    "a nested with of invokes": ("with t.invoke(p):\n    a = m.x.save()\n", {"t", "p", "m"}),
    "keyword arguments": ("f(a, key=b, *c, **d)", {"f", "a", "b", "c", "d"}),
    "starred": ("y = [*a, b]", {"a", "b"}),
    "an annotation without a value": ("x: int\ny = x", {"int", "x"}),
    "a subscript": ("y = a[i:j, None]", {"a", "i", "j"}),
    "an augmented attribute": ("block.out[:, -1] *= k", {"block", "k"}),
    "a global function's free names": ("def f():\n    def g():\n        return k\n    return g", {"k"}),
}


@pytest.mark.parametrize("case", CASES)
def test_needed_names(case: str) -> None:
    source, expected = CASES[case]
    found = needed(ast.parse(source).body)
    # An annotation may count or not: Python does not evaluate it everywhere.
    assert found - {"int"} == expected - {"int"}
