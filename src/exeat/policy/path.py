"""One canonical form for a URL path, and patterns over it.

A path rule judges the very text that is sent on. If we judged `/pub/../secret` as written and the server
resolved it, the rule would be worth nothing.
"""

from __future__ import annotations

import re

from exeat.errors import ProtocolError

MAX_JUDGED = 8_192  # RFC 9112 section 3 asks for request lines of 8,000 at least. Longer ones cost others their turn.
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # RFC 3986 §2.3
# Nothing to do for these: unreserved, sub-delims, ":" and "@" in segments that are not empty or dots.
_PLAIN = re.compile(r"(?:/(?!\.)[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?|/")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
# Raw characters that no URI has but clients send; one form for them, so that a rule can name them.
_LOOSE = re.compile(r'["<>^`{|}\[\]\x80-\xff]')
_REFUSED = re.compile(r"[\x00-\x20\x7f\\?#]|[^\x00-\xff]")


def canonical_path(raw: str) -> str:
    """The one spelling of a path: the form to judge and the form to send.

    The text holds one character per byte (latin-1), without the query. `*` alone (RFC 9110 §7.1, OPTIONS)
    stays as it is. What servers read in different ways (an encoded slash, a backslash, a NUL) is refused.
    """
    if len(raw) > MAX_JUDGED:
        raise ProtocolError("the path is too long to be judged", status=414)
    if _PLAIN.fullmatch(raw):
        return raw
    if raw in ("", "*"):
        return raw or "/"
    if raw[0] != "/":
        raise ProtocolError("the path does not start with a slash")
    if _REFUSED.search(raw):
        raise ProtocolError("the path contains a character that must be percent-encoded")
    return _resolve(_LOOSE.sub(_encode, _ESCAPE.sub(_decode, raw)))


def _encode(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _decode(found: re.Match[str]) -> str:
    if not found[1]:
        raise ProtocolError("the path has a percent sign without two hexadecimal digits")
    code = int(found[1], 16)
    char = chr(code)
    if char in "/\\" or code < 0x20 or code == 0x7F:
        # Servers disagree on whether %2F separates segments, and %00 ends a C string.
        raise ProtocolError("the path hides a slash, a backslash or a control character in percent-encoding")
    return char if char in _UNRESERVED else f"%{code:02X}"


def _resolve(path: str) -> str:
    """Remove dot segments (RFC 3986 §5.2.4) and empty ones. `..` above the root stays at the root."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment.partition(";")[0] in (".", "..") and ";" in segment:
            # "/pub/..;/secret": servlet containers drop ";…" and then resolve the dots.
            raise ProtocolError("the path has a dot segment with parameters")
        elif segment not in ("", "."):
            kept.append(segment)
    folder = bool(kept) and segments[-1] in ("", ".", "..")
    return "/" + "/".join(kept) + ("/" if folder else "")


def is_canonical_path(path: str) -> bool:
    """Whether the path is in canonical form, without raising."""
    try:
        return canonical_path(path) == path
    except ProtocolError:
        return False


def path_matches(pattern: str, path: str) -> bool:
    """Whether a canonical path fits a pattern: `*` is any text within a segment, `**` any run of segments.

    Greedy search for the pieces between stars, never backtracking: the time is linear in the path.
    """
    if path[:1] != "/" or not path.startswith(pattern.partition("*")[0].rstrip("/")):
        return False  # most rules differ at once: a long path is not taken apart for each of them
    groups: list[list[str]] = [[]]
    for segment in pattern[1:].split("/"):
        if segment == "**":
            groups.append([])
        else:
            groups[-1].append(segment)
    segments = path[1:].split("/")
    if len(groups) == 1:
        return len(groups[0]) == len(segments) and _run_fits(groups[0], segments, 0)
    first, last = groups[0], groups[-1]
    end = len(segments) - len(last)
    at = len(first)
    if at > end or not _run_fits(first, segments, 0) or not _run_fits(last, segments, end):
        return False
    for group in groups[1:-1]:
        while at + len(group) <= end and not _run_fits(group, segments, at):
            at += 1
        at += len(group)
        if at > end:
            return False
    return True


def _run_fits(patterns: list[str], segments: list[str], at: int) -> bool:
    return all(_segment_fits(each, segments[at + i]) for i, each in enumerate(patterns))


def _segment_fits(pattern: str, segment: str) -> bool:
    if "*" not in pattern:
        return pattern == segment
    head, *middle, tail = pattern.split("*")
    if len(segment) < len(head) + len(tail) or not segment.startswith(head) or not segment.endswith(tail):
        return False
    at, end = len(head), len(segment) - len(tail)
    for piece in middle:
        found = segment.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
