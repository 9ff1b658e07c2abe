"""The examples of the documentation: every Python block runs, every TOML block parses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from attrs import define

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "plugins/*/README.md", "cookbook/**/*.md")
    for path in ROOT.glob(pattern)
)
#: What needs files, commands and an installation: tests/packaging follows it as a reader would.
FOLLOWED = {ROOT / "docs" / "plugin-tutorial.md"}
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)


@define(frozen=True)
class Block:
    """A fenced block: what its fence says, its text, and the line it starts on."""

    info: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [
        Block(match["info"].strip(), match["text"], text.count("\n", 0, match.start()) + 2)
        for match in FENCE.finditer(text)
    ]


def of_language(language: str) -> list[Any]:
    """Return a parameter for each page that has blocks of a language; a skip with the reason for none."""
    pages = [
        page
        for page in PAGES
        if page not in FOLLOWED and any(language in each.info.split() for each in blocks(page.read_text("utf-8")))
    ]
    if not pages:
        skip = pytest.mark.skip(reason=f"no page has a {language} block yet")
        return [pytest.param(None, id="none", marks=skip)]
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages]


def test_blocks_are_found() -> None:
    """The finder sees fences with info strings, indentation and line numbers."""
    text = "one\n```python\na = 1\n```\n\n- x\n\n  ```toml title\n  b = 2\n  ```\n"
    assert blocks(text) == [Block("python", "a = 1\n", 3), Block("toml title", "  b = 2\n", 9)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_fence_runs(page: Path) -> None:
    """No Python fence carries words that could exempt it from running."""
    infos = {each.info for each in blocks(page.read_text(encoding="utf-8"))}
    assert not {info for info in infos if re.match(r"(python|py|pycon)\b", info) and info != "python"}


@pytest.mark.parametrize("page", of_language("python"))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run in order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.info == "python":
            # Newlines before it, so that a traceback shows the line of the page.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)  # noqa: S102 - our own pages


@pytest.mark.parametrize("page", of_language("toml"))
def test_toml_blocks_parse(page: Path) -> None:
    """The TOML blocks of a page are TOML."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.info == "toml":
            assert tomllib.loads(block.text)
