"""Rules as people type them: what is stored for them, and what a slip is answered with."""

from __future__ import annotations

import pytest

from exeat.errors import ConfigError
from exeat.sandbox.typed import read_allow, read_block


@pytest.mark.parametrize(
    ("text", "stored", "note"),
    [
        ("github.com", ".github.com", "github.com and its subdomains"),
        ("GitHub.com.", ".github.com", "github.com and its subdomains"),
        (" github.com ", ".github.com", "github.com and its subdomains"),
        ("github.com:443 methods=GET", ".github.com:443 methods=GET", "github.com and its subdomains"),
        ("=github.com", "github.com", ""),
        ("=github.com:22", "github.com:22", ""),
        (".github.com", ".github.com", ""),
        ("*.github.com", "*.github.com", ""),
        ("10.0.0.1", "10.0.0.1", ""),
        ("10.0.0.0/8:22", "10.0.0.0/8:22", ""),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443", ""),
        ("[::1]", "[::1]", ""),
        ("localhost", "localhost", "this host only, because it is a single label"),
        ("db:5432 private", "db:5432 private", "this host only, because it is a single label"),
        ("github.io", "github.io", "this host only, because anyone can register names below it"),
        ("bücher.test", ".xn--bcher-kva.test", "xn--bcher-kva.test and its subdomains"),
    ],
)
def test_what_allow_stores(text: str, stored: str, note: str) -> None:
    """A name covers its subdomains and says so, unless strangers could have them; all else is as written."""
    typed = read_allow(text, 1)
    assert (typed.rule.text, typed.note) == (stored, note)


@pytest.mark.parametrize(
    ("text", "denied"),
    [
        ("github.com", "!.github.com"),
        ("=github.com", "!github.com"),
        ("*.github.com:443", "!*.github.com:443"),
        ("github.io", "!.github.io"),
        ("localhost", "!.localhost"),
        ("*", "!*"),
        ("10.0.0.0/8", "!10.0.0.0/8"),
        ("a.test methods=POST", "!.a.test methods=POST"),
        ("a.test private max_upload=1MB", "!.a.test"),
    ],
)
def test_what_block_denies(text: str, denied: str) -> None:
    """Always with subdomains: to deny too much is safe. What a deny rule cannot have is left out."""
    assert read_block(text, 1).rule.text == denied


SLIPS = [
    ("https://github.com/x", "github.com"),
    ("HTTPS://GitHub.com", "GitHub.com"),
    ("http://github.com:8080/x?y#z", "github.com:8080"),
    ("https://me:secret@github.com/x", "github.com"),
    ("github.com/x", "github.com"),
    ("github.com:443/x", "github.com:443"),
    ("10.0.0.1:80/x", "10.0.0.1:80"),
    ("*.github.com/x", "'*.github.com'"),
    ("=github.com/x", "github.com"),
    ("ssh://git@github.com/x", "github.com:22"),
    ("git@github.com:owner/repository.git", "github.com:22"),
    ("https://[2001:db8::1]:8443/", "'[2001:db8::1]:8443'"),
    ("https://github.com?x", "github.com"),
    ("https://$(id)/", "HOST"),
]


@pytest.mark.parametrize("verb", ["allow", "block"])
@pytest.mark.parametrize(("text", "meant"), SLIPS)
def test_a_url_is_answered_with_the_right_form(verb: str, text: str, meant: str) -> None:
    """As a command that can be copied into a shell; a password in it is not repeated as part of that."""
    with pytest.raises(ConfigError) as caught:
        (read_allow if verb == "allow" else read_block)(text, 1)
    assert caught.value.expected == f"exeat proxy {verb} {meant}"


@pytest.mark.parametrize(
    ("texts", "error", "expected"),
    [
        (["!evil.test"], "denies", "exeat proxy block evil.test"),
        (["=.good.test"], "not one host", "=good.test"),
        (["=*.good.test"], "not one host", "=good.test"),
        (["=!good.test"], "not one host", "=good.test"),
        (["good.test", "methods=GET"], "an option without a rule", "'good.test methods=GET'"),
        (["good.test", "private"], "an option without a rule", "'good.test private'"),
        (["*.com"], "every name", "force"),
        (["*"], "every name", "force"),
        (["10.0.0.1/admin"], "neither a host nor a CIDR", "paths=/admin"),
        ([""], "empty", "HOST"),
        (["a.test\nevil.test"], "character", ""),
    ],
)
def test_what_allow_refuses(texts: list[str], error: str, expected: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError, match=error) as caught:
        for number, text in enumerate(texts, 1):
            read_allow(text, number)
    assert expected in caught.value.expected
    assert str(caught.value).isascii() or "…" in caught.value.expected


def test_block_takes_no_denial() -> None:
    """`block !x` could mean two things."""
    with pytest.raises(ConfigError, match="denies already"):
        read_block("!x.test", 1)
