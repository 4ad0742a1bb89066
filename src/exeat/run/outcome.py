"""What a run came to: what was blocked and what failed, for people and, as one JSON object, for programs.

The gateway's process makes both texts. The process that started the command only adds how that ended: it has loaded
next to nothing, and by then nothing can be loaded any more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = 1

Row = tuple[str, int, str]  # where, how often, what to say


class Outcome(NamedTuple):
    """`facts`: members of the JSON object, without its braces; empty if the gateway had died.

    `used_ssh`: something was let through to the port of SSH. `nesters`: programs that were refused a user namespace,
    which the gateway does not know of.
    """

    denied: tuple[Row, ...] = ()
    failed: tuple[Row, ...] = ()
    facts: str = ""
    used_ssh: bool = False
    nesters: tuple[str, ...] = ()


UNKNOWN: Final = Outcome()
_NO_FACTS: Final = (
    '"sandbox": null, "jail": null, "allowed": [], "denied": [], "failed": [], '
    '"more": {"allowed": 0, "denied": 0, "failed": 0}'
)


def write_outcome(outcome: Outcome) -> str:
    """For `read_outcome`. No field holds a NUL."""
    rows = [str(field) for row in (*outcome.denied, *outcome.failed) for field in row]
    return "\0".join((outcome.facts, str(int(outcome.used_ssh)), str(len(outcome.denied)), *rows))


def read_outcome(text: str) -> Outcome:
    """Raises ValueError."""
    facts, used_ssh, denied, *fields = text.split("\0")
    rows = [
        (where, int(count), said) for where, count, said in zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
    ]
    return Outcome(tuple(rows[: int(denied)]), tuple(rows[int(denied) :]), facts, used_ssh == "1")


def as_json(outcome: Outcome, status: int | None, error: str = "") -> str:
    """The whole object, on one line. `status` None: the command was not started, or not run to its end."""
    complete = "true" if outcome.facts else "false"
    nesters = ", ".join(map(_quoted, outcome.nesters))
    return (
        f'{{"version": {VERSION}, "exit_status": {"null" if status is None else status}, "complete": {complete}, '
        f'"error": {_quoted(error) if error else "null"}, "refused_namespaces": [{nesters}], '
        f"{outcome.facts or _NO_FACTS}}}\n"
    )


def _quoted(text: str) -> str:
    """A JSON string. Not by `json`, which is not loaded where this is needed."""
    plain = (char if char.isascii() and char.isprintable() and char not in '"\\' else _escaped(char) for char in text)
    return f'"{"".join(plain)}"'


def _escaped(char: str) -> str:
    """As UTF-16, by hand: no codec can be loaded once imports are sealed."""
    code = ord(char)
    units = (code,) if code < 0x10000 else (0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF))
    return "".join(f"\\u{unit:04x}" for unit in units)
