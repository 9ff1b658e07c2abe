"""Importing the package: no torch, and every public name documented and reachable."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mapping_core

ROOT = Path(mapping_core.__file__).parent


def run(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "code",
    [
        "import mapping_core",
        "import mapping_core.cli, mapping_core.commands.plugins",
        "import mapping_core.commands.inspect, mapping_core.commands.export",
        "from mapping_core import Registry; Registry.discover()",
        "from mapping_core import Registry; Registry.discover().resolve('mapper', 'srht')",
        "import mapping_core; dir(mapping_core)",
    ],
)
def test_no_torch(code: str) -> None:
    """Neither the import, nor the command, nor discovery, nor reading a configuration loads torch."""
    heavy = "import sys; print(sorted({'torch', 'numpy', 'lightning_fabric', 'sklearn'} & set(sys.modules)))"
    assert run(f"{code}\n{heavy}") == "[]\n"


def test_version_is_the_distributions() -> None:
    """The version in the source and in the installed metadata are one."""
    metadata = run("from importlib.metadata import version; print(version('mapping-core'))")
    assert metadata.strip() == mapping_core.__version__


def test_all_is_complete_and_sorted() -> None:
    """Every lazy name is public, dir() shows every public name, and the list is in order."""
    names = [name for name in mapping_core.__all__ if name != "__version__"]
    assert set(mapping_core._LAZY) <= set(names) <= set(dir(mapping_core))
    assert names == sorted(names)


def test_unknown_attribute() -> None:
    """A name that does not exist is an AttributeError, as for any module."""
    with pytest.raises(AttributeError, match="module 'mapping_core' has no attribute 'MapingModel'"):
        _ = mapping_core.MapingModel


def test_lazy_names_are_where_the_table_says() -> None:
    """Each lazy name is defined in the module its table entry names, and imported for type checkers alike."""
    tree = ast.parse(Path(mapping_core.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == mapping_core._LAZY
    for name, module in mapping_core._LAZY.items():
        path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
        defined = {
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        assert name in defined


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the public methods a class defines itself."""
    return [item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def contract() -> set[str]:
    """Return the methods that are documented once, where they are promised, and overridden elsewhere."""
    promised = {"forward", "extra_repr"}  # torch's
    for path in [ROOT / "components.py", *ROOT.glob("interfaces/*.py")]:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                promised |= {item.name for item in methods(node) if ast.get_docstring(item)}
    return promised


def exempt(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Tell hook implementations and overloads, whose purpose is documented once elsewhere."""
    return any(isinstance(item, ast.Name) and item.id in ("hookimpl", "overload") for item in node.decorator_list)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_public_is_documented(path: Path) -> None:
    """Every module, public class, function and method that is new with it has a docstring."""
    tree, promised = parsed(path), contract()
    found: list[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]] = [("the module", tree)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_") and not exempt(node):
            found.append((node.name, node))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            new = [item for item in methods(node) if item.name not in promised and not exempt(item)]
            found += [(f"{node.name}.{item.name}", item) for item in new]
    for name, node_ in found:
        docstring = ast.get_docstring(node_)
        assert docstring, f"{path.name}: {name} has no docstring"
        assert docstring.split("\n\n")[0].rstrip()[-1] in ".:?!)", f"{path.name}: {name}: a first line is no sentence"
