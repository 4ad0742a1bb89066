"""Which keys on this machine a command would not find."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from exeat.errors import ConfigError
from exeat.files.keys.hidden import HiddenPath, hidden_paths
from exeat.policy.files import VIEW


@dataclass(frozen=True, slots=True)
class HiddenKeys:
    """`paths` in order; `second_names` are those among them by another name of which the same file can be read."""

    paths: tuple[HiddenPath, ...] = ()
    second_names: tuple[str, ...] = ()
    fault: str = ""  # why no command would start
    home: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, object]:
        return {
            "paths": [{"path": each.path, "why": each.why, "keeps": list(each.keep)} for each in self.paths],
            "second_names": list(self.second_names),
            "fault": self.fault,
        }

    def to_rows(self) -> list[tuple[str, str]]:
        """What the paths are, and the paths, as people write them."""
        rows: dict[str, list[str]] = {}
        for each in self.paths:
            kept = f" (but not {', '.join(each.keep)} in it)" if each.keep else ""
            rows.setdefault(each.why, []).append(self._shown(each.path) + kept)
        return [(why, ", ".join(paths)) for why, paths in rows.items()]

    def warnings(self) -> list[str]:
        """What is not as hidden as it looks, or stops every run."""
        said = [
            f"{self._shown(path)} has a second name (a hard link), by which it can be read"
            for path in self.second_names
        ]
        return [f"no command can be run: {self.fault}", *said] if self.fault else said

    def _shown(self, path: str) -> str:
        if path.startswith(f"{self.home}/"):
            path = f"~{path[len(self.home) :]}"
        return "".join(char if char.isprintable() else "?" for char in path)


def find_hidden_keys() -> HiddenKeys:
    """As for a run without options. Files are looked up and not opened, but for some settings."""
    home = str(Path("~").expanduser().resolve())
    try:
        paths = hidden_paths(home, os.environ, os.geteuid(), VIEW)
    except ConfigError as error:
        return HiddenKeys(fault=str(error), home=home)
    linked = tuple(each.path for each in paths if _has_second_name(Path(each.path)))
    return HiddenKeys(tuple(paths), linked, home=home)


def _has_second_name(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink() and path.lstat().st_nlink > 1
    except OSError:
        return False
