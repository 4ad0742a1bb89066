"""`exeat doctor`: what this machine can enforce, and with --attack whether it does."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from exeat.doctor.report import examine_machine, to_lines
from exeat.errors import ConfigError


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say which jails work here, and why the others do not. With --attack, try to get\n"
        "out of one: every probe runs once without a jail, where it must work, and once\n"
        "inside. Nothing is sent beyond this machine."
    )
    parser.epilog = "exit status: 0 contained, 1 something got out or nothing contains, 2 not tried"
    parser.add_argument("--attack", action="store_true", help="run the escape corpus and print a scorecard")
    parser.add_argument(
        "--jail",
        choices=("netns", "nft", "container", "vm", "env"),
        default="netns",
        help="what to attack (%(default)s)",
    )
    parser.add_argument(
        "--container",
        metavar="IMAGE",
        nargs="?",
        const="",
        help="with --jail container: use this image; it needs Python",
    )
    parser.add_argument("--engine", choices=("docker", "podman"), default="", help="with --jail container")
    parser.add_argument(
        "--class", dest="groups", metavar="NAME", action="append", default=[], help="try only this class (repeatable)"
    )
    parser.add_argument("--nest", action="store_true", help="attack exeat run --nest, as root in a user namespace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if options.attack:
        return doctor_attack(options)
    return doctor(as_json=options.json)


def doctor(*, as_json: bool) -> int:
    """Print the report. Exit status 1 if no jail here is a boundary."""
    report = examine_machine()
    if as_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print("\n".join(to_lines(report)))
    return 0 if report.can_contain else 1


def doctor_attack(options: argparse.Namespace) -> int:
    """Attack a jail and print the scorecard. Exit status 1 if anything got out, 2 if it could not be tried."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"the escape corpus needs Linux, and this is {sys.platform}")
    jail, groups, nest = options.jail, options.groups, options.nest
    from exeat.attack.guest.inside import inside_guest
    from exeat.attack.harness import attack
    from exeat.attack.in_container import Inside, look_into
    from exeat.attack.probes import GROUPS
    from exeat.jail.select import examine

    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ConfigError(f"no such class: {', '.join(unknown)}", expected=", ".join(GROUPS))
    if nest and (jail != "netns" or os.geteuid() == 0):
        raise ConfigError("it works only in the netns jail, and not as root", where="--nest", expected="another user")
    if jail != "container" and (options.container is not None or options.engine):
        raise ConfigError("they apply only to a container", where="--container, --engine", expected="--jail container")
    try:
        found = examine(jail)
    except ImportError as error:
        raise ConfigError(f"the {jail} jail does not work here: {error}") from None
    if not found.ok:
        raise ConfigError(f"the {jail} jail does not work here: {found.why}", expected=found.fix)
    exeat = (sys.executable, "-P", "-m", "exeat")
    inside = Inside()
    if jail == "container":
        inside = look_into(options.container, options.engine, exeat)
    elif jail == "vm":
        inside = inside_guest()
    card = attack(jail, groups=groups, exeat=exeat, nest=nest, inside=inside, progress=_progress)
    _progress("")
    print(card.to_json() if options.json else card.to_text({name: group.title for name, group in GROUPS.items()}))
    return card.status


def _progress(title: str) -> None:
    """One line that is written over, for a person who waits."""
    if sys.stderr.isatty():
        print(f"\r\033[K{title and f'trying: {title} ...'}", end="", file=sys.stderr, flush=True)
