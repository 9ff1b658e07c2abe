"""On what, with what and when something is measured."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import torch

import mapping_core


def machine(device: torch.device) -> dict[str, str | int]:
    """Processor, device, threads, versions, and the day."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mapping_core": mapping_core.__version__,
    }


def _processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
