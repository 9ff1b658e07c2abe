"""The contract of plugins as text, one line a thing: `python -m tests.api > api.txt` after an announced change.

Read from the source and not from imported modules, so that it is the same on every Python and needs no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parents[1] / "mapping_core"
#: What a plugin implements and is given: every public class and function of these files, with its methods and fields.
CONTRACT = (
    "hookspecs.py",
    "components.py",
    "contexts.py",
    *(f"interfaces/{path.name}" for path in sorted(CORE.glob("interfaces/[a-z]*.py"))),
    "random.py",
    "testing/worlds.py",
)
#: The modules whose `__all__` is public.
NAMES = ("__init__.py", "testing/__init__.py")


def lines() -> Iterator[str]:
    """Yield the contract, a line a name, field, function or method."""
    for file in NAMES:
        module = _module(file)
        for node in _parsed(file).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from sorted(f"{module}: {name}" for name in ast.literal_eval(node.value))
    for file in CONTRACT:
        for node in _parsed(file).body:
            yield from _described(_module(file), node)


def _described(module: str, node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        yield f"{module}.{signature(node)}"
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        bases = ", ".join(map(ast.unparse, node.bases))
        yield f"{module}.{node.name}({bases})"
        inside = [each for item in node.body for each in (item.body if isinstance(item, ast.If) else [item])]
        for item in inside:
            if isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name == "__init__"):
                kind = next((ast.unparse(each) for each in item.decorator_list), "")
                yield f"{module}.{node.name}.{signature(item)}{f'  # {kind}' if kind else ''}"
            elif isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
                default = "" if item.value is None else f" = {ast.unparse(item.value)}"
                yield f"{module}.{node.name}.{ast.unparse(item.target)}: {ast.unparse(item.annotation)}{default}"


def signature(node: ast.FunctionDef) -> str:
    """A function's name, arguments and result, as the source writes them."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def _module(file: str) -> str:
    path = file.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", ".")
    return f"mapping_core.{path}" if path else "mapping_core"


def _parsed(file: str) -> ast.Module:
    return ast.parse(CORE.joinpath(file).read_text(encoding="utf-8"))


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201 - a script
