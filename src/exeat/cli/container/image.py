"""`exeat image gateway`: its options, and the progress shown during the build."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from exeat.cli.parser import HelpText
from exeat.errors import ConfigError


def add_image_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Build an image of the exeat that is installed here."
    actions = parser.add_subparsers(title="images", metavar="IMAGE", required=True, prog="exeat image")
    gateway = actions.add_parser("gateway", help="the gateway, to run next to containers", formatter_class=HelpText)
    gateway.description = (
        "Build the gateway as an image, if it is not there yet, and print its name.\n"
        "It runs exeat serve: not as root, without capabilities, with a read-only root,\n"
        "and with a health check. PROXY_PORT, PROXY_ALLOWLIST and EXEAT_* set it up."
    )
    gateway.epilog = (
        "The base needs the same Python minor version and system as exeat here.\n"
        "Only the base is fetched, and only if it is missing."
    )
    gateway.add_argument(
        "--base", metavar="IMAGE", default="", help="build on this image (EXEAT_GATEWAY_BASE, default python:X.Y-slim)"
    )
    gateway.add_argument("--tag", metavar="NAME", default="", help="also tag it NAME, such as exeat-gateway:latest")
    gateway.add_argument("--engine", choices=("docker", "podman"), default="", help="which engine (EXEAT_ENGINE)")
    gateway.set_defaults(run=_build_gateway)


def _build_gateway(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from exeat.container.gateway_image import also_name, ensure_gateway_image
    from exeat.engine.errors import BuildError
    from exeat.engine.find import open_engine

    engine = open_engine(options.engine)
    try:
        tag = ensure_gateway_image(engine, options.base, _progress if sys.stderr.isatty() else None)
    except BuildError as error:
        print(error.log, file=sys.stderr)
        raise
    finally:
        _progress("")
    if options.tag:
        if not options.tag.rpartition("/")[2].partition(":")[0]:
            raise ConfigError(f"bad name {options.tag!r}", where="--tag", expected="NAME or NAME:TAG")
        also_name(engine, tag, options.tag)
    print(options.tag or tag)
    return 0


def _progress(line: str) -> None:
    """One line that is written over, for a person who waits."""
    if sys.stderr.isatty():
        text = "".join(char for char in line.strip() if char.isprintable())[:70]
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
