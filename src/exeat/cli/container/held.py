"""`python -m exeat.cli.container.held ARGUMENTS`: exeat that ends when its standard input closes.

So a gateway in a container on another machine ends with the run that it belongs to, even if that is killed.
"""

from __future__ import annotations

import os
import threading

from exeat.cli.main import console


def _end_with_input() -> None:
    while os.read(0, 4_096):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    console()
