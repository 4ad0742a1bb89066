"""The report of `exeat doctor`: which jails work here, which keys are hidden; as a table or as JSON."""

from __future__ import annotations

import os
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path

from exeat.doctor.containers import EngineLine, examine_engines
from exeat.doctor.features import Fact, kernel_facts, version_facts
from exeat.doctor.vms import VmLine, examine_vms
from exeat.errors import ConfigError
from exeat.file_policy import VIEW
from exeat.files.keys.hidden import HiddenPath, hidden_paths

JAILS = {
    "netns": "namespaces, no root needed",
    "nft": "packet rules by user, needs root",
    "env": "proxy variables only; not a boundary",
}


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


@dataclass(frozen=True, slots=True)
class JailLine:
    """Whether one kind of jail works here, why, and what would help if not."""

    name: str
    what: str
    ok: bool
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that the doctor found."""

    jails: tuple[JailLine, ...]
    kernel: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    hidden: HiddenKeys = field(default_factory=HiddenKeys)
    engines: tuple[EngineLine, ...] = ()
    vms: tuple[VmLine, ...] = ()

    @property
    def can_contain(self) -> bool:
        """Whether any jail that works here is a boundary."""
        return any(jail.ok for jail in self.jails if jail.name != "env")

    def to_dict(self) -> dict[str, object]:
        return {
            "jails": [asdict(jail) for jail in self.jails],
            "kernel": [asdict(fact) for fact in self.kernel],
            "versions": {fact.name: fact.value for fact in self.versions},
            "hidden": self.hidden.to_dict(),
            "containers": [asdict(engine) for engine in self.engines],
            "vms": [asdict(part) for part in self.vms],
        }


def examine_machine() -> Report:
    """Ask for everything. Each jail is examined by building one."""
    jails = tuple(_examine(name) for name in JAILS)
    return Report(
        jails, tuple(kernel_facts()), tuple(version_facts()), find_hidden_keys(), examine_engines(), examine_vms()
    )


def _examine(name: str) -> JailLine:
    try:
        # Loaded here: on other systems the jails cannot even be imported, which is an answer too.
        from exeat.jail.select import examine

        found = examine(name)
    except (ImportError, AttributeError) as error:
        return JailLine(name, JAILS[name], ok=False, why=f"not available on this system ({error})", fix="")
    return JailLine(name, JAILS[name], found.ok, found.why, found.fix)


def _hidden_lines(hidden: HiddenKeys) -> list[str]:
    lines = ["", "Files hidden from commands, unless --show PATH names them"]
    for what, paths in hidden.to_rows():
        lines.append(f"  {what}")
        lines += textwrap.wrap(paths, 98, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
    for warning in hidden.warnings():
        lines += textwrap.wrap(warning, 98, initial_indent="! ", subsequent_indent=" " * 6)
    return lines if len(lines) > 2 else [*lines, "  none here"]


def _below(*texts: str) -> list[str]:
    """Under the line of what they explain."""
    indent = " " * 14
    return [line for text in texts for line in textwrap.wrap(text, 98, initial_indent=indent, subsequent_indent=indent)]


def to_lines(report: Report) -> list[str]:
    """The report for people, at most 100 columns."""
    lines = ["Jails"]
    for jail in report.jails:
        lines.append(f"  {jail.name:<6} {'yes' if jail.ok else 'no':<4} {jail.what}")
        lines += _below(jail.why, f"to get it: {jail.fix}" if jail.fix and not jail.ok else "")
    lines += ["", "Containers, for exeat run --container"] if report.engines else []
    for engine in report.engines:
        first, *others = engine.to_texts()
        lines.append(f"  {engine.kind:<6} {'yes' if engine.ok else 'no':<4} {first}")
        lines += _below(*others)
    lines += ["", "Virtual machines, for exeat run --vm"] if report.vms else []
    for part in report.vms:
        first = f"{part.part:<6} {'yes' if part.ok else 'no':<4} {part.why}"
        lines += textwrap.wrap(first, 98, initial_indent="  ", subsequent_indent=" " * 14)
        lines += _below(f"to get it: {part.fix}" if part.fix and not part.ok else "")
    lines += _hidden_lines(report.hidden)
    for title, facts in (("Kernel", report.kernel), ("Versions", report.versions)):
        lines += ["", title]
        for fact in facts:
            mark = "!" if fact.good is False else " "
            lines += textwrap.wrap(
                f"{fact.name:<18} {fact.value}", 98, initial_indent=f"{mark} ", subsequent_indent=" " * 21
            )
    if not report.can_contain:
        lines += ["", "No jail here is a boundary."]
    else:
        lines += ["", "To test it: exeat doctor --attack"]
    return lines
