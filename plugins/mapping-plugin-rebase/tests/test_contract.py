"""What every callback promises, of `rebase`."""

from __future__ import annotations

from mapping_core.testing import CallbackSuite
from mapping_plugin_rebase import Rebase


class TestRebase(CallbackSuite):
    """The suite."""

    component = Rebase
