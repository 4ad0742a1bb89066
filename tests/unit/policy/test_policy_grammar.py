"""The rule grammar: what each form means, and errors that point at the character."""

from __future__ import annotations

import pytest

from exeat.errors import ConfigError
from exeat.policy import Scope, Source, parse_rule

HERE = Source("policy.toml", 3, 10)
WEB = ((80, 80), (443, 443))
ALL = ((1, 65535),)

CANONICAL = [
    ("good.test", "good.test"),
    ("  GOOD.test.  ", "good.test"),
    ("good.test:443", "good.test:443"),
    ("good.test:8000-8010", "good.test:8000-8010"),
    ("good.test:22-22", "good.test:22"),
    ("good.test:*", "good.test:*"),
    ("good.test:1-65535", "good.test:*"),
    ("localhost:8080", "localhost:8080"),
    ("*.Wild.test", "*.wild.test"),
    (".wild.test:443", ".wild.test:443"),
    ("!evil.test", "!evil.test"),
    ("!*.com", "!*.com"),
    ("!.com", "!.com"),
    ("!*", "!*"),
    ("!*:22", "!*:22"),
    ("!10.0.0.0/8", "!10.0.0.0/8"),
    ("bücher.test", "xn--bcher-kva.test"),
    ("*.bücher.test", "*.xn--bcher-kva.test"),
    ("* force", "* force"),
    ("*.com:443 force", "*.com:443 force"),
    (".github.io force", ".github.io force"),
    ("1.2.3.4", "1.2.3.4"),
    ("1.2.3.4/32:22", "1.2.3.4:22"),
    ("10.0.0.0/8", "10.0.0.0/8"),
    ("0.0.0.0/0:53", "0.0.0.0/0:53"),
    ("[::1]:8080", "[::1]:8080"),
    ("[2001:DB8::/32]", "[2001:db8::/32]"),
    ("[2001:db8::]/32:443", "[2001:db8::/32]:443"),
    ("[2001:db8::1/128]", "[2001:db8::1]"),
    ("[::ffff:10.0.0.1]:22", "10.0.0.1:22"),
    ("[::ffff:10.0.0.0/104]", "10.0.0.0/8"),
    ("[::/0]", "[::/0]"),
    ("good.test private", "good.test private"),
    ("good.test   force  private", "good.test private force"),
    ("good.test methods=HEAD|GET|GET", "good.test methods=GET|HEAD"),
    ("good.test paths=/x|/repos/acme/**|/x", "good.test paths=/repos/acme/**|/x"),
    ("good.test max_upload=10MB", "good.test max_upload=10000000"),
    ("good.test max_upload=1KiB", "good.test max_upload=1024"),
    ("good.test allow_sni_mismatch", "good.test allow_sni_mismatch"),
    ("!good.test methods=DELETE paths=/admin/**", "!good.test methods=DELETE paths=/admin/**"),
    (
        "good.test max_upload=1 paths=/ methods=GET force allow_sni_mismatch private",
        "good.test private allow_sni_mismatch force methods=GET paths=/ max_upload=1",
    ),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_rule_has_one_canonical_text(text: str, canonical: str) -> None:
    """Every form is read, has one spelling, and that spelling reads back as the same rule."""
    rule = parse_rule(text, HERE)
    assert rule.text == str(rule) == canonical
    again = parse_rule(canonical, Source("elsewhere"))
    assert again == rule
    assert hash(again) == hash(rule)
    assert (again.deny, again.pattern, again.ports, again.methods, again.paths) == (
        rule.deny,
        rule.pattern,
        rule.ports,
        rule.methods,
        rule.paths,
    )


def test_parts_of_a_rule() -> None:
    """The fields say what the text says."""
    rule = parse_rule("*.wild.test:8000-8010 private methods=GET paths=/a max_upload=2GiB", HERE)
    assert (rule.deny, rule.pattern.scope, rule.pattern.name) == (False, Scope.BELOW, "wild.test")
    assert rule.ports == ((8000, 8010),)
    assert (rule.private, rule.force, rule.allow_sni_mismatch) == (True, False, False)
    assert (rule.methods, rule.paths, rule.max_upload) == (frozenset({"GET"}), ("/a",), 2 * 1024**3)
    assert rule.source is HERE


def test_ports_left_out_are_exactly_80_and_443() -> None:
    """No range between them sneaks in."""
    rule = parse_rule("good.test", HERE)
    assert rule.ports == WEB
    assert [port for port in range(65536) if rule.has_port(port)] == [80, 443]
    assert parse_rule("good.test:*", HERE).ports == ALL


def test_rules_of_a_deny_list_deny() -> None:
    """`deny=True` is the list's way of writing `!`, on the quick way through the parser too."""
    assert parse_rule("evil.test", HERE, deny=True) == parse_rule("!evil.test", HERE)
    assert parse_rule("*.com", HERE, deny=True) == parse_rule("!*.com", HERE)


# (text, offset of the offending character, part of `expected`)
BAD = [
    ("", 0, "HOST"),
    ("   ", 0, "HOST"),
    ("!", 1, "HOST"),
    ("! evil.test", 1, "HOST"),
    ("!!evil.test", 1, "HOST"),
    ("https://github.com/x", 0, "github.com:443 paths=/x"),
    ("http://github.com", 0, "github.com:80"),
    ("https://u:p@github.com:8443/", 0, "github.com:8443"),
    ("github.com/foo", 10, "paths=/foo"),
    ("good.test\n", 9, ""),
    ("good.test\tprivate", 9, ""),
    ("evil.test\0.wild.test", 9, ""),
    ("good\x7f.test", 4, ""),
    ("good\u2028.test", 4, ""),
    ("te$t.good.test", 2, "HOST"),
    ("good..test", 5, "HOST"),
    ("-good.test", 0, "HOST"),
    ("g%6fod.test", 1, "HOST"),
    ("good.test@evil.test", 9, "HOST"),
    ("good.test,evil.test", 9, "HOST"),
    ("evil\u200b.test:x y", 11, "a port"),
    ("\u200b.test", 0, "HOST"),
    # numbers
    ("127.1", 0, ""),
    ("0x7f.1", 0, ""),
    ("2130706433", 0, ""),
    ("*.1.2.3.4", 0, "CIDR"),
    (".1.2.3.4", 0, "CIDR"),
    ("10/8", 0, ""),
    ("10.0.0.0/33", 9, "10.0.0.0/8"),
    ("10.0.0.0/08", 8, ""),
    ("10.0.0.1/8", 0, "10.0.0.0/8 or 10.0.0.1"),
    ("::1", 0, "[::1]"),
    ("2001:db8::/32", 4, "[2001:db8::/32]"),
    ("[2001:db8::1/32]", 0, "[2001:db8::/32]"),
    ("[2001:db8::/129]", 12, "[2001:db8::/32]"),
    ("[2001:db8::]/0999", 13, "[2001:db8::/32]"),
    ("[::1]x", 5, "[::1]:443"),
    ("[good.test]", 0, "[2001:db8::1]"),
    ("[1.2.3.4]", 1, "[2001:db8::1]"),
    ("[fe80::1%eth0]", 0, "[2001:db8::1]"),
    ("[::1", 0, "[2001:db8::1]"),
    # ports
    ("good.test:", 10, "a port"),
    ("good.test:0", 10, "a port"),
    ("good.test:+80", 10, "a port"),
    ("good.test:8_0", 10, "a port"),
    ("good.test:٣", 10, "a port"),
    ("good.test:65616", 10, "a port"),
    ("good.test:http", 10, "a port"),
    ("good.test:80-", 13, "a range"),
    ("good.test:80-x", 13, "a range"),
    ("good.test:90-80", 10, "80-90"),
    ("good.test:80:90", 9, "brackets"),
    ("[::1]:x", 6, "a port"),
    # stars
    ("*", 0, "force"),
    ("*:443", 0, "force"),
    ("*.com", 0, "force"),
    (".com", 0, "force"),
    ("*.co.uk", 0, "*.example.co.uk"),
    ("*.github.io", 0, "force"),
    ("*.test", 0, "force"),
    ("*.kawasaki.jp", 0, "force"),
    ("*.公司.cn", 0, "force"),
    ("  *.com", 2, "force"),
    ("a*.good.test", 1, "*.good.test"),
    ("good.*", 5, "*.good.test"),
    ("*.*.good.test", 2, "*.good.test"),
    ("**.good.test", 0, "*.good.test"),
    ("*good.test", 0, "*.good.test"),
    ("..good.test", 1, "HOST"),
    ("*.", 2, "HOST"),
    # options
    ("good.test evil.test", 10, "private"),
    ("good.test Private", 10, "private"),
    ("good.test private private", 18, "once"),
    ("good.test private=yes", 17, "private"),
    ("good.test methods", 10, "methods=GET"),
    ("good.test methods=", 18, "methods=GET"),
    ("good.test methods=GET|", 22, "methods=GET"),
    ("good.test methods=get", 18, "methods=GET"),
    ("good.test methods=GET,HEAD", 18, "methods=GET"),
    ("good.test paths=", 16, "paths=/"),
    ("good.test paths=x", 16, "paths=/"),
    ("good.test paths=/a|b", 19, "paths=/"),
    ("good.test paths=/a/../b", 16, "paths=/b"),
    ("good.test paths=/a//b", 16, "paths=/a/b"),
    ("good.test paths=/a%2fb", 16, ""),
    ("good.test paths=/a?x=1", 16, ""),
    ("good.test paths=/é", 16, "paths=/%C3%A9"),
    ("good.test paths=/a**", 18, "/a/**/b"),
    ("good.test paths=/x/**.git", 19, "/a/**/b"),
    ("good.test max_upload=0", 21, "10MB"),
    ("good.test max_upload=10mx", 21, "10MB"),
    ("good.test max_upload=1.5MB", 21, "10MB"),
    ("good.test max_upload=-1", 21, "10MB"),
    ("good.test max_upload=٣", 21, "10MB"),
    ("good.test max_upload=999999999999999999GB", 21, "10MB"),
    ("!good.test private", 11, "methods="),
    ("!good.test force", 11, "methods="),
    ("!good.test methods=GET max_upload=1", 23, "methods="),
    ("!good.test allow_sni_mismatch", 11, "methods="),
]


@pytest.mark.parametrize(("text", "offset", "expected"), BAD, ids=ascii)
def test_bad_rule_points_at_the_character(text: str, offset: int, expected: str) -> None:
    """The error names the file, the line and the very column, and shows what would be right."""
    with pytest.raises(ConfigError) as caught:
        parse_rule(text, HERE)
    assert caught.value.where == f"policy.toml:3:{10 + offset}"
    assert expected in caught.value.expected
    assert caught.value.public.isprintable()


def test_exclamation_mark_in_a_deny_list_is_an_error() -> None:
    """A double negation would be an allow in a list that says deny."""
    with pytest.raises(ConfigError, match="denies already"):
        parse_rule("!evil.test", HERE, deny=True)


@pytest.mark.parametrize(
    "text",
    ["a" * 10_000_000, "*a*a*a*" * 1_400_000, "a." * 5_000_000, "[" * 10_000_000, "a:" * 499, "-" * 1000, "*a" * 500],
    ids=lambda text: text[:8],
)
def test_huge_rule_is_an_error(text: str) -> None:
    """Length is checked first, so ten megabytes cost nothing (catalogue row I6)."""
    with pytest.raises(ConfigError):
        parse_rule(text, HERE)


@pytest.mark.parametrize(
    ("source", "text", "error_at_4"),
    [
        (Source("policy.toml", 3, 12), "policy.toml:3:12", "policy.toml:3:16"),
        (Source("policy.toml", 3), "policy.toml:3", "policy.toml:3"),
        (Source("--allow", item=2), "--allow #2", "--allow #2, character 5"),
        (Source("PROXY_ALLOWLIST", item=2), "PROXY_ALLOWLIST item 2", "PROXY_ALLOWLIST item 2, character 5"),
        (Source("default"), "default", "default, character 5"),
    ],
)
def test_source_prints_as_people_would_say_it(source: Source, text: str, error_at_4: str) -> None:
    """The same value prints a rule's place and an error's place."""
    assert str(source) == text
    assert source.at(4) == error_at_4
