"""The guest's first process, as it was built: `agent.c`."""

from __future__ import annotations

import os


def read() -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "agent-x86_64"), "rb") as file:
        return file.read()
