"""Sphinx configuration: the documentation is Markdown, and a warning is an error."""

project = "mapping-core"
author = "The mapping-core authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "alabaster"
