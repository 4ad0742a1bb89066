"""How many examples a property is tried with: as many as its test says, or a tenth of them in `make quick`."""

from __future__ import annotations

import os

QUICK = "EXEAT_TEST_QUICK"


def examples(count: int) -> int:
    return max(10, count // 10) if QUICK in os.environ else count
