"""Where each value of a TOML or JSON file was written. `tomllib` and `json` do not say.

This only finds places. What a file means is decided by the real parsers, which have read it before this
runs. Where the two disagree the caller gets a coarser place, never another meaning.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from exeat.errors import ConfigError
from exeat.policy.rule import Source
from exeat.values import frozen

Path = tuple[str | int, ...]
Token = re.Match[str]

_DEPTH = 4  # secrets -> name -> hosts -> third rule; what is nested deeper is a type error anyway

# Alternatives differ in their first character, so none is tried twice and a hostile file costs linear time. Groups are
# not possessive: Python before 3.11.5 gets those wrong.
_TOML = re.compile(
    r"""(?P<string>\"{3}(?:[^"\\]++|\\.|"{1,2}(?!"))*"{3,5}"""
    r"""|'{3}(?:[^']++|'{1,2}(?!'))*'{3,5}"""
    r"""|"(?:[^"\\\n]++|\\.)*"|'[^'\n]*+')"""
    r"""|(?P<skip>[ \t\r]++|\#[^\n]*+)|(?P<mark>[\[\]{},=.\n])|(?P<word>[^\s\[\]{},=."'\#]++)|(?P<other>.)""",
    re.DOTALL,
)
_JSON = re.compile(
    r"""(?P<string>"(?:[^"\\\n]++|\\.)*")"""
    r"""|(?P<skip>\s++)|(?P<mark>[\[\]{},:])|(?P<word>[^\s\[\]{},:"]++)|(?P<other>.)""",
    re.DOTALL,
)


@frozen
class Place:
    """The first character of a text. `exact` says that offsets into the text are columns from here."""

    line: int
    column: int
    exact: bool = False

    def moved(self, offset: int) -> Place:
        """The place of a character inside the text; with escapes in it, only the start is sure."""
        return Place(self.line, self.column + offset, exact=True) if self.exact else self


class Positions:
    """Places of keys and values by path: `("allow", 2)` is the third element of `allow`."""

    def __init__(self, text: str, *, json: bool) -> None:
        self.repeated: Place | None = None  # the first key that is there twice
        self._keys: dict[Path, Place] = {}
        self._values: dict[Path, Place] = {}
        self._json = json
        self._separator = ":" if json else "="
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        # A stream and one token: a file of many megabytes must not become as many objects.
        self._stream = (_JSON if json else _TOML).finditer(text)
        self._token: Token | None = None
        self._mark = ""  # the token, if it is a mark
        self._next()
        if json:
            self._value(())
        else:
            self._statements()

    def key(self, *path: str | int) -> Place | None:
        """The place of the key, or else of the nearest key that contains it."""
        for length in range(len(path), 0, -1):
            if place := self._keys.get(path[:length]):
                return place
        return None

    def value(self, *path: str | int) -> Place | None:
        """The place of the literal, or else of the nearest key that contains it."""
        return self._values.get(path) or self.key(*path)

    def _next(self) -> None:
        for token in self._stream:
            kind = token.lastgroup
            if kind != "skip":
                self._token = token
                self._mark = token[0] if kind == "mark" else ""
                return
        self._token, self._mark = None, ""

    def _skip_to(self, marks: tuple[str, ...]) -> None:
        while self._token is not None and self._mark not in marks:
            self._next()

    def _statements(self) -> None:
        """TOML: `[table]` headers and `key = value` lines."""
        table: Path = ()
        while self._token is not None:
            header = self._mark == "["
            while self._mark == "[":
                self._next()
            path = self._key(() if header else table)
            if header:
                table = path
            elif self._mark == "=":
                self._next()
                self._value(path)
            self._skip_to(("\n",))
            self._next()

    def _key(self, above: Path) -> Path:
        """Read a dotted key and note it. Escapes in a quoted key are not undone: it just has no place."""
        path = above
        while (token := self._token) is not None and token.lastgroup in ("string", "word"):
            path = (*path, token[0][1:-1] if token.lastgroup == "string" else token[0])
            place = self._place(token)
            if path in self._keys and self.repeated is None:
                self.repeated = place
            self._keys.setdefault(path, place)
            self._next()
            if self._json or self._mark != ".":
                break
            self._next()
        return path

    def _value(self, path: Path) -> None:
        """Note the value under the cursor and go past it."""
        opening = self._mark
        if opening not in ("[", "{"):
            if self._token is not None:
                self._values[path] = self._place(self._token)
            self._skip_to((",", "]", "}", "\n"))
        elif len(path) >= _DEPTH:
            self._skip_nested()
        else:
            self._next()
            count = 0
            while self._token is not None and self._mark not in ("]", "}"):
                if self._mark in (",", "\n"):
                    self._next()
                elif opening == "[":
                    self._value((*path, count))
                    count += 1
                else:
                    self._pair(path)
            self._next()

    def _pair(self, path: Path) -> None:
        before = self._token
        inner = self._key(path)
        if self._mark == self._separator:
            self._next()
            self._value(inner)
        if self._token is before:  # a token that fits nowhere must not stop us
            self._next()

    def _skip_nested(self) -> None:
        depth = 0
        while self._token is not None:
            depth += (self._mark in ("[", "{")) - (self._mark in ("]", "}"))
            self._next()
            if depth == 0:
                return

    def _place(self, token: Token) -> Place:
        text, start = token[0], token.start()
        exact = False
        if token.lastgroup == "string":
            quotes = 3 if not self._json and text[:3] in ('"""', "'''") and len(text) >= 6 else 1
            start += quotes
            exact = "\n" not in text and ("\\" not in text or text[0] == "'")
        line = bisect_right(self._lines, start)
        return Place(line, start - self._lines[line - 1] + 1, exact)


@frozen(eq=False)
class Places:
    """Where the parts of one table of a file were written; `above` leads to the table."""

    filename: str
    positions: Positions
    above: Path = ()

    def __call__(self, *path: str | int, key: bool = False, offset: int = 0) -> Source:
        """The place of a value, or of its key; `offset` is a character of a text, for as far as that can be told."""
        whole = (*self.above, *path)
        place = self.positions.key(*whole) if key else self.positions.value(*whole)
        if place is None or not whole:  # not found, or the file as a whole
            return Source(self.filename, 1)
        place = place.moved(offset)
        return Source(self.filename, place.line, place.column)

    def below(self, key: str) -> Places:
        """Those of a table in this one."""
        return Places(self.filename, self.positions, (*self.above, key))

    def fault(self, public: str, *path: str | int, expected: str, at_key: bool = False) -> ConfigError:
        return ConfigError(public, where=str(self(*path, key=at_key)), expected=expected)
