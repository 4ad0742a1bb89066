"""The result of an attack on a jail, for people and for programs."""

from __future__ import annotations

import enum
import json
import textwrap
from collections import Counter
from dataclasses import dataclass


class Seen(enum.Enum):
    """What became of one probe."""

    STOPPED = "stopped"
    ESCAPED = "ESCAPED"
    LIMIT = "known limit"  # gets out of every jail there is, and docs/limits.md says so
    WORKS = "works"
    BROKEN = "BROKEN"  # what must work does not, or the probe could not be run: proves nothing, so it is a failure
    LEFT_OUT = "left out"  # by name, and for a reason: it says nothing about this jail
    NO_CONTROL = "no control"  # does not work without a jail either: counts as neither


@dataclass(frozen=True, slots=True)
class Row:
    """One probe against one jail."""

    id: str
    group: str
    title: str
    jail: str
    expected: str  # "stopped", "works", or "gets out" where the jail does not claim to stop it
    seen: Seen
    said: str  # what the probe met in the jail
    evidence: str = ""  # where it arrived, or what it held
    control: str = ""  # what the same probe did without a jail
    lack: str = ""  # why there is no control: "absent" here, "refused" to this user, or "failed"

    @property
    def failed(self) -> bool:
        """An escape is a failure in any jail, also in one that does not claim to stop it."""
        return self.seen in {Seen.ESCAPED, Seen.BROKEN}


@dataclass(frozen=True, slots=True)
class Scorecard:
    """All rows of one attack."""

    jail: str
    user: str
    rows: tuple[Row, ...]

    @property
    def status(self) -> int:
        """The exit status: 1 if anything got out, or if the attack proves nothing."""
        return 1 if not self.rows or any(row.failed for row in self.rows) else 0

    @property
    def summary(self) -> str:
        count = Counter(row.seen for row in self.rows)
        parts = [f"{count[Seen.STOPPED]} stopped", f"{count[Seen.ESCAPED]} escaped"]
        parts.append(f"{count[Seen.WORKS]} of {count[Seen.WORKS] + count[Seen.BROKEN]} things that must work do")
        if count[Seen.LIMIT]:
            parts.append(f"{count[Seen.LIMIT]} known limit{'' if count[Seen.LIMIT] == 1 else 's'}")
        if count[Seen.NO_CONTROL]:
            parts.append(f"{count[Seen.NO_CONTROL]} without control")
        if count[Seen.LEFT_OUT]:
            parts.append(f"{count[Seen.LEFT_OUT]} left out")
        return f"{self.jail} as {self.user}: " + ", ".join(parts)

    def to_json(self) -> str:
        rows = [
            {
                "id": row.id,
                "class": row.group,
                "attack": row.title,
                "expected": row.expected,
                "seen": row.seen.value,
                "said": row.said,
                "evidence": row.evidence,
                "control": row.control,
                "lack": row.lack,
            }
            for row in self.rows
        ]
        return json.dumps({"jail": self.jail, "user": self.user, "summary": self.summary, "rows": rows}, indent=1)

    def to_text(self, titles: dict[str, str]) -> str:
        """A table of at most 100 columns. `titles` are the headings of the groups."""
        lines = [f"  {'id':<22} {'attack':<54} {'expected':<8} seen"] if self.rows else []
        group = ""
        for row in self.rows:
            if row.group != group:
                group = row.group
                lines.append(f"\n{titles.get(group, group)}")
            title = row.title if len(row.title) <= 54 else row.title[:53] + "…"
            lines.append(f"  {row.id:<22} {title:<54} {row.expected:<8} {row.seen.value}")
            why = _why(row)
            if why:
                lines += textwrap.wrap(why, 96, initial_indent=" " * 25, subsequent_indent=" " * 25)
        if not self.rows:
            lines.append("no probe was run")
        return "\n".join([*lines, "", self.summary]).lstrip("\n")


def _why(row: Row) -> str:
    """What a reader must know beyond the verdict."""
    match row.seen:
        case Seen.ESCAPED:
            claim = "" if row.expected == "stopped" else "; this jail does not claim to stop it"
            return _plain(row.evidence + claim)
        case Seen.LIMIT:
            return _plain(f"{row.evidence}; see docs/limits.md")
        case Seen.BROKEN:
            return _plain(row.said)
        case Seen.NO_CONTROL:
            return _plain(row.control)
        case Seen.LEFT_OUT:
            return _plain(row.said)
        case _:
            return ""


def _plain(text: str) -> str:
    """Without control characters: part of this text was written by a probe."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300]
