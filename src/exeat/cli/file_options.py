"""The options that say what a command may do to files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings

_SENTENCE = (
    "the command changes the working directory. What it writes elsewhere goes to a\n"
    "layer, which ends with the run or stays with --name. Keys are hidden. What\n"
    "[files] in a policy file says adds to these options"
)


def add_file_options(parser: argparse.ArgumentParser, sentence: str = _SENTENCE) -> None:
    group = parser.add_argument_group("files", sentence)
    group.add_argument(
        "--write", metavar="PATH", action="append", default=[], help="the command may change this for real (repeatable)"
    )
    group.add_argument(
        "--read-only",
        metavar="PATH",
        action="append",
        default=[],
        help="the command cannot change this, not even in its layer",
    )
    group.add_argument("--hide", metavar="PATH", action="append", default=[], help="the command does not find this")
    group.add_argument(
        "--show", metavar="PATH", action="append", default=[], help="the command finds this, although it is a key"
    )
    group.add_argument(
        "--files",
        choices=("view", "host"),
        help="host: the command changes every file that you may, and finds your keys (default: view)",
    )
    group.add_argument(
        "--layer-size", metavar="SIZE", help="how much the command may write to the layer (default: 8GiB)"
    )
    group.add_argument(
        "--nest",
        action="store_true",
        help="let the command make sandboxes of its own (user namespaces): bwrap, Chromium",
    )


def file_settings(options: argparse.Namespace) -> FileSettings:
    """What the options say. Raises ConfigError."""
    return FileSettings(
        mode=options.files,
        write=_paths("--write", options.write),
        read_only=_paths("--read-only", options.read_only),
        hide=_paths("--hide", options.hide),
        show=_paths("--show", options.show),
        layer_bytes=None if options.layer_size is None else _layer_bytes(options.layer_size),
        nest=options.nest or None,
    )


def _paths(option: str, given: Iterable[str]) -> tuple[str, ...]:
    paths = tuple(given)
    if "" in paths:
        raise ConfigError("an empty path", where=option, expected="a file or a folder")
    return paths


def _layer_bytes(text: str) -> int:
    from exeat.policy.files import LAYER_SIZE, parse_layer_size  # noqa: PLC0415 - takes 20 ms, and few need it

    try:
        return parse_layer_size(text)
    except ValueError:
        raise ConfigError(f"not a size of a layer: {text!r}", where="--layer-size", expected=LAYER_SIZE) from None
