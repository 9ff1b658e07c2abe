"""Who imports whom: core no plugin, a plugin no other plugin, registration modules no torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN_PACKAGES = sorted(ROOT.glob("plugins/*/src/*/"))
HEAVY = {"torch", "lightning_fabric", "numpy", "sklearn", "safetensors"}


def imported(path: Path, *, at_import: bool = False) -> set[str]:
    """Return the top-level packages a file imports; with `at_import` only what importing it runs."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            found.update(str(arg.value).split(".")[0] for arg in node.args[:1] if isinstance(arg, ast.Constant))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_the_walker_sees_imports(tmp_path: Path) -> None:
    """The check itself finds an import at any depth, and tells those that run at import."""
    path = tmp_path / "example.py"
    path.write_text("import a.b\ndef f():\n    from c import d\nimport importlib\nimportlib.import_module('e.f')\n")
    assert imported(path) == {"a", "c", "e", "importlib"}
    assert imported(path, at_import=True) == {"a", "e", "importlib"}


def test_core_imports_no_plugin() -> None:
    """Not one file of core names a plugin in an import."""
    files = list(ROOT.glob("mapping_core/**/*.py"))
    assert len(files) > 20
    for path in files:
        assert not {name for name in imported(path) if name.startswith("mapping_plugin_")}, path


@pytest.mark.parametrize("package", PLUGIN_PACKAGES, ids=lambda path: path.name)
def test_plugin_imports_no_other_plugin(package: Path) -> None:
    """A plugin knows core and itself; they meet in the registry."""
    for path in package.parents[1].rglob("*.py"):
        assert {name for name in imported(path) if name.startswith("mapping_plugin_")} <= {package.name}, path


@pytest.mark.parametrize("package", PLUGIN_PACKAGES, ids=lambda path: path.name)
def test_registration_module_is_light(package: Path) -> None:
    """Importing what the entry point names runs no heavy import; `build` does that."""
    assert not imported(package / "__init__.py", at_import=True) & HEAVY
