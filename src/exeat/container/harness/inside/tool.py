"""The tools of an image."""

from __future__ import annotations

import json
import os
import typing


class Tool:
    """A function in a file. Compiled once, here; its module is executed in workers only."""

    def __init__(self, folder: str, entry: dict[str, typing.Any]) -> None:
        self.path = os.path.join(folder, entry["file"])
        self.stem = entry["file"].rpartition(".")[0]
        self.function = str(entry["function"])
        self.is_async = bool(entry.get("is_async"))
        self.code: typing.Any
        try:
            with open(self.path, "rb") as file:
                self.code = compile(file.read(), self.path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            self.code = error.with_traceback(None)


def read_tools(folder: str) -> dict[str, Tool]:
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        manifest = json.load(file)
    if manifest["version"] != 1:
        raise SystemExit("the manifest of the tools is of another version")
    return {name: Tool(folder, entry) for name, entry in manifest["tools"].items()}
