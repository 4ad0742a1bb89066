"""One text, read one way, whichever door it comes through."""

from __future__ import annotations

import string

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.sources import make_policy
from tests.support.examples import examples
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import (
    ABSOLUTE,
    ALL,
    HOSTS,
    OUTER,
    REDIRECT,
    SOCKS_ADDRESS,
    SOCKS_NAME,
    TEXT,
    Door,
    Verdict,
    ask,
    assert_verdict,
    expected_verdict,
)
from tests.support.gateways.scene import Scene
from tests.support.gateways.threats import HostThreat, StartAt, Trial, at_every_door

every_door = pytest.mark.parametrize("door", ALL, ids=str)
every_outer_door = pytest.mark.parametrize("door", OUTER, ids=str)
every_text_door = pytest.mark.parametrize("door", TEXT, ids=str)

GOOD = ["good.test", "GOOD.test", "good.test.", "GoOd.TeSt.", "a.wild.test", "x.Y.wild.test."]

A1_CONTROL = [
    *(b"evil.test" + bytes([byte]) + b".wild.test" for byte in (*range(0x21), 0x7F)),
    *(b"good.test" + bytes([byte]) for byte in (*range(0x21), 0x7F)),
    b"evil.test%00.wild.test",
    b"good.test%00",
    b"localhost\0.wild.test",
    b"evil.test\r\n.wild.test",
]
A2_NUMERIC = [
    "0x7f.1",
    "0x7f000001",
    "0177.0.0.1",
    "2130706433",
    "017700000001",
    "127.1",
    "127.0.1",
    "127.0.0.010",
    "127.0.0.1.1",
    "127.0.0.256",
    "0x7f.0.0.0x1",
    "0X7F.1",
    "127.0.0.0x",
    "1",
    "0",
    "good.test.1",
    "good.0x7f",
]
A3_SPECIAL = [
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[fec0::1]",
    "224.0.0.1",
    "168.63.129.16",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "100.64.0.1",
    "10.0.0.1",
    "192.168.0.1",
    "0.0.0.0",
    "127.0.0.1",
    "127.255.255.254",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[ff02::1]",
    "[2001:0:a9fe:a9fe::1]",
]
A3_ZONES = ["[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%lo]", "[::1%25lo]"]
A4_BRACKETS = [
    "[good.test]",
    "[[good.test]]",
    "[::1]good.test",
    "good.test[::1]",
    "[127.0.0.1]",
    "[::1",
    "::1]",
    "[]",
    "[::1]]",
    "good.test..",
    ".good.test",
    "good..test",
    ".",
    "",
    "::1",
    "good.test:80",
    "-good.test",
    "good-.test",
    "a" * 64 + ".wild.test",
    ".".join(["a" * 49] * 5) + ".wild.test",
]
A5_SIMILAR = [
    "evil.test",
    "evilgood.test",
    "good.test.evil.test",
    "goodxtest",
    "wild.test",
    "evilwild.test",
    "a.wild.test.evil.test",
    "sub.good.test",
    "test",
    "good",
    "xwild.test",
]
A6_UNICODE: list[str | bytes] = [
    "evil。com",
    "ⓔvil.com",
    "\uff47ood.test",
    "good。test",
    "good\uff0etest",
    "go\u200bod.test",
    "goo\u00add.test",
    "faß.wild.test",
    "\u0131.wild.test",
    "\u212a.wild.test",
    "bücher.wild.test",
    b"b\xfccher.wild.test",
    b"\xff.wild.test",
    b"\xc0\xae.wild.test",
    "good.test\u2028",
    "xn--.wild.test",
    "xn--a.wild.test",
    "xn--good-.wild.test",
]
A7_USERINFO = [
    "good.test@evil.test",
    "evil.test@good.test",
    "good.test\\@evil.test",
    "good.test\\.evil.test",
    "g%6fod.test",
    "good.test%2eevil.test",
    "%67ood.test",
    "good.test%40evil.test",
    "good.test:x@evil.test",
    "good.test:@evil.test",
    "@good.test",
    "good.test#",
    "evil.test#@good.test",
    "good.test;evil.test",
    "good.test,evil.test",
    "good.test&evil.test",
    "*.wild.test",
    "*",
    "good*",
]
A4_PORTS = ["+80", "8_0", "٣", "65616", "0", "", "080", "-1", "0x50", "80.0", "8 0", "80\t", "99999999999999999999"]


def port_texts(scene: Scene) -> list[str]:
    """Odd spellings of the very port that is allowed: a lenient reader would take each of them for it."""
    port = str(scene.port)
    return [
        f"+{port}",
        f"{port[0]}_{port[1:]}",
        f"0{port}",
        str(scene.port + 65536),
        f"{port}.0",
        hex(scene.port),
        f"-{port}",
    ]


@every_door
def test_the_probe_itself_works(door: Door, scene: Scene) -> None:
    """The control of all A rows: an allowed host is reached through every door, in any case and with a final dot."""
    for host in GOOD:
        outcome = ask(door, scene, host)
        if outcome is not None:
            assert (outcome.verdict, outcome.reached) == (Verdict.ALLOW, True), host


@every_outer_door
def test_the_probe_itself_works_for_addresses(door: Door, start_scene: StartScene) -> None:
    """The control for addresses: one that is listed is reached, also in its IPv4-mapped spelling."""
    scene = start_scene(["127.0.0.1:{port}", "good.test:{port} private"])
    for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"):
        outcome = ask(door, scene, host)
        assert outcome is not None or door in (SOCKS_ADDRESS, REDIRECT)  # loopback inside is the sandbox's own
        if outcome is not None:
            assert (outcome.verdict, outcome.reached) == (Verdict.ALLOW, True), host


NONE = HostThreat("T-A1", "none", ["a.wild.test"], Verdict.BAD)


@pytest.mark.parametrize("door", NONE.doors(), ids=str)
def test_a_host_that_is_not_refused_is_noticed(door: Door, start_at: StartAt) -> None:
    """The control of the threats below: an allowed host does not pass for a refused one."""
    with pytest.raises(AssertionError):
        NONE.check(door, start_at)


ANY_NAME = ("*:* private force", "good.test:{port} private")


@at_every_door(
    HostThreat("T-A1", "control bytes", A1_CONTROL, Verdict.BAD),
    HostThreat("T-A2", "numeric forms", A2_NUMERIC, Verdict.BAD, ("127.0.0.1:*", *ANY_NAME), ("good.test", "any.test")),
    HostThreat("T-A3", "special addresses", A3_SPECIAL, Verdict.DENY, ANY_NAME, ("good.test", "any.test")),
    HostThreat("T-A3", "zones", A3_ZONES, Verdict.BAD),
    HostThreat("T-A4", "brackets, dots and lengths", A4_BRACKETS, Verdict.BAD),
    HostThreat("T-A5", "similar names", A5_SIMILAR, Verdict.DENY),
    HostThreat("T-A6", "Unicode", A6_UNICODE, Verdict.BAD),
    HostThreat("T-A7", "userinfo, backslash and percent", A7_USERINFO, Verdict.BAD),
)
def test_host(trial: Trial, start_at: StartAt) -> None:
    trial.check(start_at)


@pytest.mark.threat("T-A3")
@every_outer_door
def test_special_addresses_are_denied_by_a_rule_for_the_whole_internet(door: Door, start_scene: StartScene) -> None:
    """Who writes 0.0.0.0/0 and [::]/0 means public addresses, and gets no other."""
    scene = start_scene(["0.0.0.0/0:*", "[::/0]:*", "good.test:{port} private"])
    for host in A3_SPECIAL:
        assert_verdict(door, scene, host, Verdict.DENY)
    for host in ("93.184.215.14", "[2606:2800:21f:cb07::1]"):
        outcome = ask(door, scene, host)
        assert outcome is not None
        assert outcome.verdict is Verdict.ALLOW
        assert outcome.seen.dials == (((host.strip("[]"),), scene.port),)


@pytest.mark.threat("T-A3")
@every_outer_door
def test_a_special_address_that_is_listed_is_dialled(door: Door, start_scene: StartScene) -> None:
    """The control: the same literals reach the dialler once each is listed, and exactly they do."""
    rules = [f"{host}:*" for host in dict.fromkeys(A3_SPECIAL)]
    scene = start_scene([*rules, "good.test:{port} private"])
    for host in A3_SPECIAL:
        outcome = ask(door, scene, host)
        if outcome is not None:
            assert outcome.verdict is Verdict.ALLOW, host
            assert len(outcome.seen.dials) == 1 or outcome.reached, host


@pytest.mark.threat("T-A4")
@every_text_door
def test_ports_that_only_a_lenient_reader_takes(door: Door, start_scene: StartScene) -> None:
    """Signs, underscores, other digits, numbers over 65535, zero, nothing: malformed though every port is open."""
    scene = start_scene(["good.test:* private"])
    for port in (*A4_PORTS, *port_texts(scene)):
        if port == "80\t" and door.name.startswith("host"):
            continue  # white space at the end of a field's value is no part of it
        assert_verdict(door, scene, "good.test", Verdict.BAD, port)


@pytest.mark.threat("T-A4")
def test_port_zero_through_socks(start_scene: StartScene) -> None:
    """The one impossible port that SOCKS can spell."""
    scene = start_scene(["good.test:* private"])
    assert_verdict(SOCKS_NAME, scene, "good.test", Verdict.BAD, 0)


@pytest.mark.threat("T-A4")
def test_rule_and_request_are_normalised_alike(start_scene: StartScene) -> None:
    """`GOOD.test.` in a rule and `good.TEST` in a request are one host, through every door."""
    scene = start_scene(["GOOD.test.:{port} private", "*.WILD.test.:{port} private"])
    for door in ALL:
        for host in GOOD:
            assert_verdict(door, scene, host, Verdict.ALLOW)


@pytest.mark.threat("T-A5")
@pytest.mark.parametrize(
    "rule", ["*", "*.com", ".com", "*.co.uk", "*.github.io", ".github.io", "*.test", "*.s3.amazonaws.com"]
)
def test_a_wildcard_over_a_public_suffix_does_not_load(rule: str) -> None:
    """Such a rule lets strangers in, so it is an error unless it says `force`."""
    with pytest.raises(ConfigError):
        make_policy([rule])
    assert len(make_policy([f"{rule} force"]).rules) == 1


@pytest.mark.threat("T-A5")
@pytest.mark.parametrize(
    "rule", ["g*.test", "good.*", "*good.test", "^good\\.test$", "good.test|evil.test", "a.*.good.test"]
)
def test_a_pattern_is_never_an_expression(rule: str) -> None:
    """No regular expression and no glob inside a label is taken for a rule."""
    with pytest.raises(ConfigError):
        make_policy([rule])


@pytest.mark.threat("T-A6")
def test_a_rule_in_unicode_matches_its_ascii_form(start_scene: StartScene) -> None:
    """The control: a rule is converted when it is loaded, and the xn-- form on the wire fits it."""
    scene = start_scene(["bücher.test:{port} private", "good.test:{port} private"])
    for door in ALL:
        assert_verdict(door, scene, "xn--bcher-kva.test", Verdict.ALLOW)
        assert_verdict(door, scene, "XN--BCHER-KVA.test.", Verdict.ALLOW)
        assert_verdict(door, scene, "bücher.test", Verdict.BAD)
        assert_verdict(door, scene, "bucher.test", Verdict.DENY)


@pytest.mark.threat("T-A7")
@pytest.mark.parametrize("tail", ["?@good.test", "/@good.test", "/..//good.test", "?good.test"])
def test_what_follows_the_authority_is_no_host(tail: str, scene: Scene) -> None:
    """In a URL the first slash or question mark ends the host, so evil.test stays evil.test."""
    mark = scene.mark()
    answer = scene.gate.send(
        f"GET http://evil.test:{scene.port}{tail} HTTP/1.1\r\nHost: evil.test:{scene.port}\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 403")
    control = scene.gate.send(
        f"GET http://good.test:{scene.port}{tail} HTTP/1.1\r\nHost: good.test:{scene.port}\r\n\r\n".encode()
    )
    assert control.startswith(b"HTTP/1.1 200")
    assert [record["verdict"] for record in scene.since(mark, decisions=2).decisions] == ["deny", "allow"]


@pytest.mark.threat("T-A7")
@pytest.mark.parametrize("door", [ABSOLUTE, *HOSTS], ids=str)
def test_userinfo_in_the_host_header_alone(door: Door, scene: Scene) -> None:
    """`Host: good.test:x@evil.test` under a request target that is in order."""
    host = b"good.test:x@evil.test"
    if door is ABSOLUTE:
        answer = scene.gate.send(b"GET http://good.test:%d/ HTTP/1.1\r\nHost: %b\r\n\r\n" % (scene.port, host))
        assert answer.startswith(b"HTTP/1.1 400")
        assert scene.origin.connections == 0
    else:
        assert_verdict(door, scene, host, Verdict.BAD)


@pytest.mark.threat("T-A9")
@every_door
def test_another_port_of_an_allowed_host_is_denied(door: Door, start_scene: StartScene) -> None:
    """22, the neighbours of the allowed port, and the web ports, which this rule does not mean."""
    scene = start_scene()
    if door.name.startswith("sni"):
        return  # a server name has no port
    for port in (22, 25, 80, 443, scene.port - 1, scene.port + 1, 65535):
        assert_verdict(door, scene, "good.test", Verdict.DENY, port)
        assert_verdict(door, scene, "a.wild.test", Verdict.DENY, port)
    assert_verdict(door, scene, "good.test", Verdict.ALLOW)


# A10

ALL_TEXTS: list[str | bytes] = [
    *GOOD,
    *A1_CONTROL,
    *A2_NUMERIC,
    *A3_SPECIAL,
    *A3_ZONES,
    *A4_BRACKETS,
    *A5_SIMILAR,
    *A6_UNICODE,
    *A7_USERINFO,
]
A10_RULES = (
    "good.test:{port} private",
    "*.wild.test:{port} private",
    ".both.test:{port} private",
    "127.0.0.1:{port}",
    "bücher.test:{port} private",
)


def assert_doors_agree(scene: Scene, host: bytes) -> None:
    expected = expected_verdict(scene.gate.gateway.policy, host, scene.port)
    for door in ALL:
        if door.name.startswith("sni") and (b":" in host or b"[" in host):
            continue  # in a server name there is no port, so a colon has another meaning
        assert_verdict(door, scene, host, expected)


@pytest.mark.threat("T-A10")
def test_the_doors_agree_on_every_text_of_this_group(start_scene: StartScene) -> None:
    """One verdict for each text, and it is the policy's."""
    scene = start_scene(A10_RULES, deny=["denied.wild.test:1-65535"])
    for host in (*ALL_TEXTS, "denied.wild.test", "x.both.test", "both.test"):
        assert_doors_agree(scene, host.encode("utf-8") if isinstance(host, str) else host)


_PIECES = st.sampled_from(
    [
        *("good.test", "evil.test", "a.wild.test", ".wild.test", "wild.test", "good", "test", "localhost"),
        *("127.0.0.1", "127.1", "0x7f", "0177", "2130706433", "[::1]", "::1", "[::ffff:127.0.0.1]", "169.254.169.254"),
        *("xn--", "xn--bcher-kva.test", "bücher.test", "。", "\uff0e", "ⓔ", "ß", "\u200b", "\u00ad", "\u2028"),
        *(
            ".",
            "..",
            "-",
            "_",
            "@",
            ":",
            "%",
            "%00",
            "%2e",
            "\\",
            "#",
            "*",
            "[",
            "]",
            ",",
            ";",
            "&",
            "=",
            "~",
            "!",
            "$",
        ),
        *("\0", "\t", "\n", "\r", "\r\n", " ", "\x0b", "\x1b", "\x7f", "\x85", "80", "0", "a" * 63, "a" * 64),
    ]
)
_RANDOM = st.text(st.one_of(st.sampled_from(string.printable), st.characters(codec="utf-8")), max_size=12)


@st.composite
def _hosts(draw: st.DrawFn) -> bytes:
    """Host texts: mostly a good name with something nasty done to it."""
    parts = draw(st.lists(st.one_of(_PIECES, _PIECES, _RANDOM), min_size=1, max_size=4))
    text = "".join(parts)
    if draw(st.booleans()):
        text = "".join(char.upper() if draw(st.booleans()) else char for char in text[:40]) + text[40:]
    raw = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "latin-1"])), "replace")
    # A slash or question mark ends a URL's host, and white space before a field's value is no part of it.
    return raw.replace(b"/", b"").replace(b"?", b"")[:255].lstrip(b" \t")


@pytest.mark.threat("T-A10")
@settings(
    max_examples=examples(150),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(host=_hosts())
@example(host=b"good.test")
@example(host=b"127.0.0.1")
@example(host=b"X.BOTH.TEST.")
def test_the_doors_agree_on_any_text(agreement: Scene, host: bytes) -> None:
    """A10 as a property: for texts biased to nasty forms all doors give one verdict, and it is the policy's."""
    assert_doors_agree(agreement, host)


@pytest.fixture
def agreement(start_scene: StartScene) -> Scene:
    return start_scene(A10_RULES)
