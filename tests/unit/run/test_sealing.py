"""Nothing is loaded once the command runs, and nothing is missed: see tests/support/at_start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.starting import take_late_imports

_SEAL_AND_USE = (
    "from exeat.run.sealing import seal_imports\nseal_imports()\ntry:\n    import {0}\nexcept ImportError:\n    pass"
)


@pytest.mark.parametrize(("module", "is_late"), [("wave", True), ("sys", False), ("os", False)])
def test_a_late_import_is_noticed(module: str, is_late: bool) -> None:
    """The witness of all other tests: were it blind, they would see nothing."""
    subprocess.run([sys.executable, "-c", _SEAL_AND_USE.format(module)], check=True, timeout=30)
    assert take_late_imports().startswith(f"{module}: <string>:4") == is_late
