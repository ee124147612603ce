"""Packages whose own code does not run when a module inside them is imported: kubernetes_asyncio's would load 770 models.

Called by api.py before it imports the five modules of the client that it uses, and by serve.py for what training scripts import. A
name that such a package lacks loads the package after all, so that other code of the process finds it whole. Apart from api.py,
because it is about Python's imports and not HTTP.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def leave_unloaded(*packages: str) -> None:
    """Let modules inside these packages be imported without them, outermost first. Nothing for what is loaded, or not installed."""
    for each in packages:
        spec = None if each in sys.modules else find_spec(each)
        if spec is None or spec.loader is None:
            continue
        module = sys.modules[each] = module_from_spec(spec)
        vars(module)["__getattr__"] = _Loading(module)
        outer, _, name = each.rpartition(".")
        if outer:
            setattr(sys.modules[outer], name, module)


class _Loading:
    """What an unloaded package does where a name is missing (PEP 562)."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __call__(self, name: str) -> Any:
        module, spec = self._module, self._module.__spec__
        inner = f"{module.__name__}.{name}"
        if not name.startswith("__") and spec is not None and spec.loader is not None:
            if find_spec(inner) is not None:
                return import_module(inner)
            if vars(module).pop("__getattr__", None) is self:
                spec.loader.exec_module(module)
                return getattr(module, name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
