"""`exeat proxy files`: what commands in a sandbox may do to files."""

from __future__ import annotations

import argparse

from exeat.cli.file_options import file_settings
from exeat.cli.screen import plain, say
from exeat.file_policy import FileSettings, combine
from exeat.sandbox.file_settings import (
    added_to,
    full_path,
    read_file_settings,
    settings_path,
    update_file_settings,
    without,
)
from exeat.sandbox.folder import open_sandbox


def keep_or_show(options: argparse.Namespace) -> int:
    """Keep what the options say, if they say anything, and print what is kept. Raises ConfigError."""
    more = file_settings(options).with_each(full_path)
    is_change = options.reset or bool(options.forget) or more != FileSettings()
    with open_sandbox(options.name) as folder:
        path = settings_path(folder)
        if is_change:
            kept = update_file_settings(
                folder, lambda before: added_to(without(before, options.forget), more), reset=options.reset
            )
        else:
            kept = read_file_settings(folder) or FileSettings(path)
    if options.json:
        import json  # noqa: PLC0415

        print(json.dumps({"name": options.name, "path": path, "files": combine(FileSettings(), [kept])._asdict()}))
        return 0
    _print(options.name, kept, path)
    if is_change:
        say("counts from the next run on")
    return 0


def _print(name: str, kept: FileSettings, path: str) -> None:
    if kept == FileSettings(path):
        say(f'the sandbox "{name}" keeps nothing about files: commands have the view, and keys are hidden')
        return
    say(f"{plain(path)}")
    for key in ("mode", "write", "read_only", "hide", "show"):
        value = getattr(kept, key)
        for each in (value,) if isinstance(value, str) else value or ():
            say(f"  {key:<10}  {plain(each)}")
    if kept.layer_bytes is not None:
        say(f"  layer_size  {kept.layer_bytes:,} bytes")
    if kept.nest is not None:
        say(f"  nest        {'yes' if kept.nest else 'no'}")
