"""Hosts: one canonical form, and refusal of every text that has two readings (catalogue rows A1 to A7)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from exeat.errors import HostError
from exeat.policy import Address, Name, canonical_host, split_authority
from exeat.policy.host import configured_host, parse_port

NAMES = [
    ("good.test", "good.test"),
    ("GOOD.test.", "good.test"),
    ("Good.Test", "good.test"),
    ("localhost", "localhost"),
    ("localhost.", "localhost"),
    ("_dmarc.good.test", "_dmarc.good.test"),
    ("a_b.good.test", "a_b.good.test"),
    ("r3---sn-abc.good.test", "r3---sn-abc.good.test"),
    ("1.2.3.4.good.test", "1.2.3.4.good.test"),
    ("127.0.0.1.nip.io", "127.0.0.1.nip.io"),
    ("0x7f.good.test", "0x7f.good.test"),
    ("a.0xg", "a.0xg"),
    ("a.1b", "a.1b"),
    ("xn--bcher-kva.test", "xn--bcher-kva.test"),
    ("XN--Bcher-KVA.test", "xn--bcher-kva.test"),
    ("a" * 63 + ".test", "a" * 63 + ".test"),
    (".".join(["a" * 49] * 5), ".".join(["a" * 49] * 5)),
    (".".join(["a" * 63] * 3 + ["a" * 61]) + ".", ".".join(["a" * 63] * 3 + ["a" * 61])),
]

ADDRESSES = [
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1.", "127.0.0.1"),
    ("0.0.0.0", "0.0.0.0"),
    ("255.255.255.255", "255.255.255.255"),
    ("[::1]", "::1"),
    ("::1", "::1"),
    ("[2001:DB8:0:0::1]", "2001:db8::1"),
    ("[::ffff:169.254.169.254]", "169.254.169.254"),
    ("[::ffff:a9fe:a9fe]", "169.254.169.254"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("[::127.0.0.1]", "::7f00:1"),
    ("[64:ff9b::a9fe:a9fe]", "64:ff9b::a9fe:a9fe"),
    ("[2002:a9fe:a9fe::1]", "2002:a9fe:a9fe::1"),
    ("[fec0::1]", "fec0::1"),
    ("224.0.0.1", "224.0.0.1"),
    ("168.63.129.16", "168.63.129.16"),
    ("100.100.100.200", "100.100.100.200"),
]

CONTROL = [chr(code) for code in [*range(0x21), 0x7F]]

REFUSED = [
    "",
    ".",
    "..",
    # A1: NUL and control bytes, wherever they stand
    *(f"evil.test{char}.wild.test" for char in CONTROL),
    *(f"good.test{char}" for char in CONTROL),
    *(f"{char}good.test" for char in CONTROL),
    "evil.test%00.wild.test",
    "localhost\0.good.com",
    # A2: numeric forms that libc dials
    "0x7f.1",
    "0177.0.0.1",
    "2130706433",
    "127.1",
    "127.0.0.010",
    "127.0.1",
    "0x7f000001",
    "0X7F000001",
    "0x",
    "017700000001",
    "1.2.3.4.5",
    "1.2.3",
    "256.1.1.1",
    "1.1.1.256",
    "1.1.1.1..",
    "01.1.1.1",
    "1.1.1.0x1",
    "good.test.1",
    "good.test.0x1f",
    "good.test.09",
    "1.2.3.4.0x",
    # A3: zones, encoded or not
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "fe80::1%1",
    # A4: brackets and dots
    "[good.test]",
    "[[good.test]]",
    "[[::1]]",
    "[::1]good.test",
    "[::1",
    "::1]",
    "[127.0.0.1]",
    "[]",
    "[:]",
    "[::1].",
    "[::1::2]",
    "[1:2:3:4:5:6:7:8:9]",
    "[::ffff:127.1]",
    "[::ffff:0177.0.0.1]",
    "[::g]",
    "good.test..",
    ".good.test",
    "good..test",
    "-good.test",
    "good-.test",
    "good.-test",
    "a" * 64 + ".test",
    ".".join(["a" * 50] * 5),
    "a." * 200,
    "a" * 10_000_000,
    # A5: patterns are not hosts
    "*",
    "*.good.test",
    "good.*",
    # A6: Unicode is never folded in a request
    "evil。com",
    "ⓔvil.com",
    "good\u200b.test",
    "good\u00ad.test",
    "faß.de",
    "bücher.test",
    "１２７.0.0.1",  # noqa: RUF001
    "127.0.0.٣",
    "good.test\u2028",
    "ɡood.test",  # noqa: RUF001
    "\ud800.test",
    "xn--.test",
    "xn--a.test",
    "xn--zzzzzzz-.test",
    "xn--ls8h.test",  # an emoji: not IDNA 2008
    # A7: userinfo, backslash, percent, and the rest of a URL
    "good.test@evil.test",
    "good.test\\@evil.test",
    "g%6fod.test",
    "good.test:x@evil.test",
    "good.test:80",
    "good.test/",
    "good.test?x",
    "good.test#x",
    "good.test;x",
    "good.test,evil.test",
    "http://good.test",
    "good test",
    "'good.test'",
    '"good.test"',
    "good.test|evil.test",
    "{good}.test",
    "good+test",
    "good=test",
    "good!.test",
    "$(id).test",
    "~good.test",
]


@pytest.mark.parametrize(("text", "canonical"), NAMES)
def test_name_has_one_canonical_form(text: str, canonical: str) -> None:
    """Case and one trailing dot do not make another host."""
    assert canonical_host(text) == Name(canonical)


@pytest.mark.parametrize(("text", "canonical"), ADDRESSES)
def test_address_is_recognised(text: str, canonical: str) -> None:
    """Whatever is an address is an Address, never a Name."""
    host = canonical_host(text)
    assert isinstance(host, Address)
    assert host == Address(ip_address(canonical))
    assert str(host) == host.text == canonical


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:40]))
def test_odd_text_is_refused(text: str) -> None:
    """What has two readings is an error and never "a name that no rule matched"."""
    with pytest.raises(HostError):
        canonical_host(text)


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:40]))
def test_odd_text_is_refused_in_an_authority(text: str) -> None:
    """The authority parser is no second door: it refuses the same hosts (with or without a port)."""
    if text != "good.test:80":
        with pytest.raises(HostError):
            split_authority(text)
    with pytest.raises(HostError):
        split_authority(f"{text}:443")


def test_errors_are_short_ascii_lines() -> None:
    """Attacker text in an error cannot forge a line, colour a terminal or fill a log."""
    for text in REFUSED:
        with pytest.raises(HostError) as caught:
            canonical_host(text)
        public = caught.value.public
        assert public.isascii()
        assert public.isprintable()
        assert len(public) < 500


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("bücher.test", "xn--bcher-kva.test"),
        ("BÜCHER.test", "xn--bcher-kva.test"),
        ("faß.de", "xn--fa-hia.de"),  # not "fass": that is another domain (non-transitional)
        ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
        ("good.test", "good.test"),
        ("a_b.test", "a_b.test"),
    ],
)
def test_configured_names_are_converted_once(text: str, canonical: str) -> None:
    """Unicode in a rule becomes the xn-- form that requests carry."""
    assert configured_host(text) == Name(canonical)


@pytest.mark.parametrize("text", ["bü cher.test", "ü" * 300, "a\u0338.te*st", "\u200b.test", "ü..test", "\ud800"])
def test_unusable_configured_name_is_an_error(text: str) -> None:
    """UTS-46 conversion fails loudly."""
    with pytest.raises(HostError):
        configured_host(text)


@pytest.mark.parametrize("text", ["1", "80", "443", "65535"])
def test_port(text: str) -> None:
    """Plain decimal ports are read."""
    assert parse_port(text) == int(text)


BAD_PORTS = ["", "0", "+80", "-1", "8_0", "٣", "65536", "65616", "99999", "080", " 80", "80 ", "80\n", "0x50", "8e1"]


@pytest.mark.parametrize("text", BAD_PORTS)
def test_odd_port_is_refused(text: str) -> None:
    """What `int()` would take and a port is not."""
    with pytest.raises(HostError):
        parse_port(text)
    with pytest.raises(HostError):
        split_authority(f"good.test:{text}")
    with pytest.raises(HostError):
        split_authority(f"[::1]:{text}")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("good.test", Name("good.test"), None),
        ("GOOD.test.:443", Name("good.test"), 443),
        ("127.0.0.1:80", Address(IPv4Address("127.0.0.1")), 80),
        ("[::1]", Address(IPv6Address("::1")), None),
        ("[::1]:8080", Address(IPv6Address("::1")), 8080),
        ("[::ffff:1.2.3.4]:1", Address(IPv4Address("1.2.3.4")), 1),
    ],
)
def test_authority(text: str, host: Name | Address, port: int | None) -> None:
    """The three forms of an authority."""
    assert split_authority(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["::1", "::1:80", "2001:db8::1", "[::1]80", "[::1]:", "[::1]:80:80", "[::1]x:80", "good.test:80:80", ":80", ":"],
)
def test_ambiguous_authority_is_refused(text: str) -> None:
    """An IPv6 address without brackets cannot be told from its port."""
    with pytest.raises(HostError):
        split_authority(text)


def test_authority_form_brackets_ipv6_only() -> None:
    """`authority` is what a URL or CONNECT line needs."""
    assert canonical_host("::1").authority == "[::1]"
    assert canonical_host("1.2.3.4").authority == "1.2.3.4"
    assert canonical_host("good.test").authority == "good.test"


def test_address_built_by_hand_is_canonical_too() -> None:
    """Code that has an address object cannot make a second form of one destination."""
    assert Address(IPv6Address("::ffff:1.2.3.4")) == Address(IPv4Address("1.2.3.4"))
    assert Address(IPv6Address("fe80::1%eth0")) == Address(IPv6Address("fe80::1"))
