"""Does a settings file hold a secret? For files that most people have nothing but settings in, and need."""

from __future__ import annotations

import os

_MOST_BYTES = 256 << 10
_MARKS = (b"passw", b"smtppass", b"secret", b"token", b"authorization", b"_auth", b"apikey", b"api_key", b"api-key")
_NO_MARKS = (b"libsecret", b"secretservice")  # where Git finds secrets, in ~/.gitconfig
_ENDS_OF_HOST = b"/ \t\r\n\"'<>"
_LONGEST_NAME = 19  # in front of a host's @; tokens are longer


def holds_secret(path: str) -> bool:
    """Is there a word that goes with secrets, or a URL with more than a user's name? If it cannot be read, too."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_MOST_BYTES + 1).lower()
    except OSError:
        return True  # its owner could make it readable
    return len(text) > _MOST_BYTES or has_secret_mark(text)


def has_secret_mark(text: bytes) -> bool:
    """The same of a text in lower case."""
    for word in _NO_MARKS:
        text = text.replace(word, b"")
    return any(mark in text for mark in _MARKS) or any(map(_names_more_than_user, text.split(b"://")[1:]))


def _names_more_than_user(rest: bytes) -> bool:
    """A URL from its host on: `name:password@host`, `token@host`."""
    end = min((found for mark in _ENDS_OF_HOST if (found := rest.find(mark)) >= 0), default=len(rest))
    user, at, _ = rest[:end].rpartition(b"@")
    return bool(at) and (b":" in user or len(user) > _LONGEST_NAME)
