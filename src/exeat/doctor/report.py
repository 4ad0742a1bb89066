"""The report of `exeat doctor`: gathered once, printed as a table or as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field

from exeat.doctor.features import Fact, kernel_facts, version_facts
from exeat.doctor.hidden import HiddenKeys, find_hidden_keys

JAILS = {
    "netns": "namespaces, no root needed",
    "nft": "packet rules by user, needs root",
    "env": "proxy variables only; not a boundary",
}


@dataclass(frozen=True, slots=True)
class JailLine:
    """Whether one kind of jail can be had, why, and what would help if not."""

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

    @property
    def can_contain(self) -> bool:
        """Whether any jail can be had that is a boundary."""
        return any(jail.ok for jail in self.jails if jail.name != "env")

    def to_dict(self) -> dict[str, object]:
        return {
            "jails": [asdict(jail) for jail in self.jails],
            "kernel": [asdict(fact) for fact in self.kernel],
            "versions": {fact.name: fact.value for fact in self.versions},
            "hidden": self.hidden.to_dict(),
        }


def examine_machine() -> Report:
    """Ask for everything. Each jail is examined by building one."""
    jails = tuple(_examine(name) for name in JAILS)
    return Report(jails, tuple(kernel_facts()), tuple(version_facts()), find_hidden_keys())


def _examine(name: str) -> JailLine:
    try:
        # Loaded here: on other systems the jails cannot even be imported, which is an answer too.
        from exeat.jail.select import examine  # noqa: PLC0415

        found = examine(name)
    except (ImportError, AttributeError) as error:
        return JailLine(name, JAILS[name], ok=False, why=f"not available on this system ({error})", fix="")
    return JailLine(name, JAILS[name], found.ok, found.why, found.fix)


def _hidden_lines(hidden: HiddenKeys) -> list[str]:
    lines = ["", "Files that a command does not find, unless --show PATH names them"]
    for what, paths in hidden.to_rows():
        lines.append(f"  {what}")
        lines += textwrap.wrap(paths, 98, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
    for warning in hidden.warnings():
        lines += textwrap.wrap(warning, 98, initial_indent="! ", subsequent_indent=" " * 6)
    return lines if len(lines) > 2 else [*lines, "  none here"]


def to_lines(report: Report) -> list[str]:
    """The report for people, at most 100 columns."""
    lines = ["Jails"]
    for jail in report.jails:
        lines.append(f"  {jail.name:<6} {'yes' if jail.ok else 'no':<4} {jail.what}")
        for text in (jail.why, f"to get it: {jail.fix}" if jail.fix and not jail.ok else ""):
            lines += textwrap.wrap(text, 98, initial_indent=" " * 14, subsequent_indent=" " * 14)
    lines += _hidden_lines(report.hidden)
    for title, facts in (("Kernel", report.kernel), ("Versions", report.versions)):
        lines += ["", title]
        for fact in facts:
            mark = "!" if fact.good is False else " "
            lines += textwrap.wrap(
                f"{fact.name:<18} {fact.value}", 98, initial_indent=f"{mark} ", subsequent_indent=" " * 21
            )
    if not report.can_contain:
        lines += ["", "No jail that is a boundary can be had here."]
    else:
        lines += ["", "To see it hold: exeat doctor --attack"]
    return lines
