"""`"filesystem"` of a configuration. Its keys are those that users of other sandboxes know; ours stand next to them."""

from __future__ import annotations

import sys
from typing import Final

from exeat.embed.written import Table
from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.policy.files import LAYER_SIZE, parse_layer_size

# How each of them is called as an option of `exeat run`.
_OPTIONS: Final = {"allow_write": "--write", "deny_write": "--read-only", "deny_read": "--hide", "allow_read": "--show"}


def read_filesystem(table: Table, jail: str) -> FileSettings:
    """Read the table whole. Raises ConfigError."""
    mode = table.text("mode")
    if mode not in ("", "view", "host"):
        raise ConfigError("not a mode", where=table.where("mode"), expected="view or host")
    settings = FileSettings(
        mode="view" if mode == "view" else "host" if mode == "host" else None,
        write=table.paths("allow_write"),
        read_only=table.paths("deny_write"),
        hide=table.paths("deny_read"),
        show=table.paths("allow_read"),
        layer_bytes=_layer_bytes(table),
        nest=table.flag("nest", False) or None,
    )
    table.finish()
    if settings.mode == "host" and (settings.hide or settings.read_only):
        raise ConfigError(
            "mode is host: the command has the files of the host, and nothing of them is kept from it",
            where=table.where("deny_read" if settings.hide else "deny_write"),
            expected="mode: view",
        )
    if settings.needs_view and (jail in ("env", "seatbelt") or (jail == "auto" and sys.platform == "darwin")):
        name = "seatbelt" if jail == "auto" else jail
        raise ConfigError(
            f"the {name} jail does not confine files", where=table.where(), expected="another jail, or no filesystem"
        )
    return settings


def file_options(settings: FileSettings) -> list[str]:
    """The same as options of `exeat run`."""
    words = [] if settings.mode is None else [f"--files={settings.mode}"]
    lists = zip(_OPTIONS.values(), (settings.write, settings.read_only, settings.hide, settings.show), strict=True)
    words += [f"{option}={path}" for option, paths in lists for path in paths]
    if settings.layer_bytes is not None:
        words.append(f"--layer-size={settings.layer_bytes}")
    return [*words, "--nest"] if settings.nest else words


def _layer_bytes(table: Table) -> int | None:
    value = table.size("layer_size")
    try:
        return None if value is None else parse_layer_size(value)
    except ValueError:
        raise ConfigError("not a size of a layer", where=table.where("layer_size"), expected=LAYER_SIZE) from None
