"""`exeat proxy pending|approve|deny`: what commands that run with --ask want to reach, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exeat.cli.screen import YELLOW, aligned, counted, in_ascii, painted, plain, say
from exeat.errors import ExeatError, HostError
from exeat.sandbox.folder import open_sandbox

if TYPE_CHECKING:
    from exeat.sandbox.control import Pending

_HEADINGS = ("ID", "PLACE", "RULE", "WAITING", "LEFT", "COMMAND")
_INSIDE = "  (an internal address: not public)"


def list_questions(name: str, *, as_json: bool) -> int:
    """Print the open questions."""
    found = _open_questions(name)
    if as_json:
        import json

        print(json.dumps([each._asdict() for each in found], indent=2))
    elif found:
        _print_table(found, error=False)
    else:
        say(f'nothing waits for an answer in the sandbox "{name}"')
    return 0


def answer_questions(name: str, wanted: Sequence[str], *, allow: bool, always: bool) -> int:
    """Answer the questions that are meant. 1 if one is not there (any more), or it is not clear which is meant."""
    from exeat.sandbox.control import answer

    found = _open_questions(name)
    if not found:
        say(f'exeat: nothing waits for an answer in the sandbox "{name}"', error=True)
        return 1
    if not wanted and len(found) > 1:
        say(f"exeat: {counted(len(found), 'question')} are open: say which, by ID or host", error=True)
        _print_table(found, error=True)
        return 1
    if not wanted:
        _print_table(found, error=False)  # what is answered now: it may not be what was shown before
    status = 0
    meant: dict[str, None] = {}
    for text in wanted:
        ids = _matching(text, found)
        if not ids:
            say(f"exeat: no question is open for {in_ascii(text)}", error=True)
            status = 1
        meant.update(dict.fromkeys(ids))
    for number in meant if wanted else [found[0].id]:
        try:
            say(plain(answer(name, number, allow=allow, always=always)))
        except ExeatError as error:
            say(f"exeat: {number}: {plain(error.public)}", error=True)
            status = 1
    if status and wanted and not meant:
        _print_table(found, error=True)
    return status


def _open_questions(name: str) -> list[Pending]:
    from exeat.sandbox.control import pending

    open_sandbox(name).close()  # says so if there is no such sandbox
    return pending(name)


def _matching(text: str, found: list[Pending]) -> list[str]:
    """The questions that a text means: the one with this ID, else those for this host, and port if it says one."""
    if any(each.id == text for each in found):
        return [text]
    from exeat.policy.host import split_authority

    try:
        host, port = split_authority(text)
    except HostError:
        return []
    names = (host.text, host.authority)
    return [each.id for each in found if each.host in names and port in (None, each.port)]


def _print_table(found: list[Pending], *, error: bool) -> None:
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for each in found:
        host = f"[{each.host}]" if ":" in each.host and not each.host.startswith("[") else each.host
        rows.append(
            (
                each.id,
                in_ascii(f"{host}:{each.port}"),
                in_ascii(each.rule),
                counted(each.waiting, "connection"),
                f"{max(each.left_s, 0):.0f} s",
                in_ascii(f"{each.command}: {each.program}" if each.program else each.command),
            )
        )
    lines = aligned(rows, right=frozenset({4}))
    say(lines[0], error=error)
    for each, line in zip(found, lines[1:], strict=True):
        say(line + (painted(_INSIDE, YELLOW, error=error) if each.inside else ""), error=error)
