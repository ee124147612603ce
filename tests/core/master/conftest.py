"""A master driven by commands (script.py), for tests that compare scripts and for those that say what comes of one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def scripts() -> ModuleType:
    """Return the module, whose `Script` runs command lines."""
    spec = importlib.util.spec_from_file_location("rover_golden_script", Path(__file__).parent / "script.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
