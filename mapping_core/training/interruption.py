"""SIGINT and SIGTERM during training: the first ends the run well, the second ends the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A signal ended the run; a script that does not catch it exits with 128 + the signal's number."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"training was ended by {signal.Signals(self.signum).name}"


class Interruption:
    """Notes the first SIGINT or SIGTERM while it is entered; `signum` is 0 until then.

    A second signal ends the process at once, with the worker processes of its loaders.
    Handlers can be set in the main thread alone; elsewhere signals do what they did.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
            self._previous = {each: signal.signal(each, self._note) for each in heard}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(128 + signum)
        self.signum = signum
