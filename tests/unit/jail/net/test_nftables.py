"""Packet rules: what the `nft` program reads back is what was meant."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from tests.support.gateways.redirected import _PATH, require

# Each expression in a rule of its own, and how nft writes it.
EXPRESSIONS = [
    ("nft.meta_skuid(1234)", "meta skuid 1234"),
    ("nft.leaves_loopback()", 'oif != "lo"'),
    ("nft.comes_from_loopback()", 'iif "lo"'),
    ("nft.l4proto(6)", "meta l4proto tcp"),
    ("nft.l4proto(6), nft.sport(53)", "tcp sport 53"),
    ("nft.l4proto(17), nft.dport(53)", "udp dport 53"),
    ("nft.l4proto(6), nft.dport(65535)", "tcp dport 65535"),
    ("nft.l4proto(6), nft.dports(8000, 8010)", "tcp dport 8000-8010"),
    ("nft.l4proto(6), nft.dports(80, 80)", "tcp dport 80"),
    ("nft.daddr(bytes([127]))", "ip daddr 127.0.0.0/8"),
    ("nft.daddr(bytes([10, 1, 2, 3]))", "ip daddr 10.1.2.3"),
    ("nft.daddr(bytes(15) + bytes([1]))", "ip6 daddr ::1"),
    ("nft.saddr(bytes([10, 1, 2, 3]))", "ip saddr 10.1.2.3"),
    ("nft.saddr(bytes(15) + bytes([1]))", "ip6 saddr ::1"),
    ("nft.ct_status_dnat()", "ct status dnat"),
    ("nft.verdict(nft.ACCEPT)", "accept"),
    ("nft.verdict(nft.DROP)", "drop"),
    ("nft.limit(50)", "limit rate 50/second burst 50 packets"),
    ("nft.log(1, 96)", "log group 1 snaplen 96"),
]


def in_namespace(program: str) -> str:
    """What a program prints in a network namespace of its own."""
    require()
    unshare = shutil.which("unshare")
    assert unshare is not None
    prelude = (
        "import socket, subprocess, sys\nfrom exeat.jail.net import network, nftables as nft\n"
        "def show(*more): print(subprocess.run(['nft', *more, 'list', 'ruleset'], capture_output=True, text=True,"
        " check=True).stdout)\n"
    )
    done = subprocess.run(
        [unshare, "-Urn", sys.executable, "-c", prelude + program],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env=os.environ | {"PATH": _PATH},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rules(shown: str, chain: str) -> list[str]:
    """The lines of a chain, its type first, in one spelling."""
    found = re.search(rf"chain {chain} {{\n(.*?)\n\t}}", shown, re.DOTALL)
    assert found, shown
    return [" ".join(line.split()) for line in found[1].splitlines()]


def test_every_expression_means_what_it_says() -> None:
    listed = ", ".join(f"nft.rule({source})" for source, _ in EXPRESSIONS)
    shown = in_namespace(
        f"nft.install('t', [nft.Chain('c', 'filter', 0, nft.ACCEPT, [{listed}])])\nshow('-n', '-n')\nshow()"
    )
    numeric, plain = shown.split("table inet t {")[1:]
    found = rules(plain, "c")[1:]
    assert len(found) == len(EXPRESSIONS) == len(rules(numeric, "c")[1:])
    for (source, expected), line in zip(EXPRESSIONS, found, strict=True):
        assert _normal(line) == expected, source


def _normal(line: str) -> str:
    """One spelling for what versions of nft write in different ways."""
    line = line.replace("meta nfproto ipv4 ", "").replace("meta nfproto ipv6 ", "")
    line = line.replace("meta l4proto tcp tcp ", "tcp ").replace("meta l4proto 6 ", "tcp ")
    line = line.replace("ip6 daddr ::1/128", "ip6 daddr ::1")
    line = re.sub(r"tcp dport >= 80 tcp dport <= 80", "tcp dport 80", line)
    line = re.sub(r"(?:th|tcp) dport >= (\d+) (?:th|tcp) dport <= (\d+)", r"tcp dport \1-\2", line)
    return line.replace("tcp dport 80-80", "tcp dport 80")


def test_a_redirection_goes_to_a_port() -> None:
    shown = in_namespace(
        "nft.install('t', [nft.Chain('c', 'nat', nft.PRIORITY_DSTNAT, nft.ACCEPT,"
        " [nft.rule(nft.l4proto(6), nft.redirect(61080))])])\nshow()"
    )
    assert rules(shown, "c")[1].endswith("meta l4proto tcp redirect to :61080")


def test_chains_have_the_hook_priority_and_policy_that_were_asked_for() -> None:
    shown = in_namespace(
        "nft.install('t', [nft.Chain('a', 'nat', nft.PRIORITY_DSTNAT, nft.ACCEPT, []),"
        " nft.Chain('b', 'filter', nft.PRIORITY_FILTER, nft.DROP, []),"
        " nft.Chain('d', 'nat', nft.PRIORITY_BEFORE_DSTNAT, nft.ACCEPT, []),"
        " nft.Chain('e', 'filter', nft.PRIORITY_LAST, nft.ACCEPT, [], hook=nft.POSTROUTING),"
        " nft.Chain('f', 'filter', nft.PRIORITY_FILTER, nft.ACCEPT, [], hook=nft.FORWARD)])\nshow('-y')"
    )
    assert rules(shown, "a") == ["type nat hook output priority -100; policy accept;"]
    assert rules(shown, "b") == ["type filter hook output priority 0; policy drop;"]
    assert rules(shown, "d") == ["type nat hook output priority -150; policy accept;"]
    assert rules(shown, "e") == ["type filter hook postrouting priority 300; policy accept;"]
    assert rules(shown, "f") == ["type filter hook forward priority 0; policy accept;"]


def test_the_jails_rules_are_these() -> None:
    shown = in_namespace("network.build_network([])\nshow()")
    assert shown.count("table ") == 1
    nat = [_normal(line) for line in rules(shown, "nat")[1:]]
    assert nat == [
        "udp dport 53 redirect to :53",
        "tcp dport 53 redirect to :53",
        "ip daddr 127.0.0.0/8 accept",
        "ip6 daddr ::1 accept",
        "ip daddr 198.51.100.1 accept",
        "ip6 daddr fd65:7865:6174:1::1 accept",
        "meta l4proto tcp redirect to :61080",
    ]
    head, *kept = [_normal(line) for line in rules(shown, "filter")]
    assert "policy drop" in head
    accepts = [line for line in kept if line.endswith("accept")]
    assert accepts == ["ct status dnat accept", *nat[2:-1]]
    refusals, *dropped = [line for line in kept if line not in accepts]
    assert "accept" not in refusals
    assert kept.index(refusals) == 1  # before what is accepted, and after redirected connections
    assert all(line.startswith("limit") and "accept" not in line for line in dropped)
    assert kept[-len(dropped) :] == dropped


def test_a_place_on_the_hosts_loopback_is_redirected_before_loopback_is_the_jails_own() -> None:
    shown = in_namespace("network.build_network([(bytes([127, 0, 0, 1]), 8000, 8010)])\nshow()")
    nat = [_normal(line) for line in rules(shown, "nat")[1:]]
    (place,) = [line for line in nat if "127.0.0.1" in line]
    assert "8000" in place
    assert place.endswith("redirect to :61080")
    assert nat.index(place) < nat.index("ip daddr 127.0.0.0/8 accept")


def test_a_table_is_replaced_whole() -> None:
    shown = in_namespace(
        "for port in (1, 2):\n nft.install('t', [nft.Chain('c', 'filter', 0, nft.ACCEPT,"
        " [nft.rule(nft.l4proto(6), nft.dport(port), nft.verdict(nft.DROP))])])\nshow()"
    )
    assert [_normal(line) for line in rules(shown, "c")[1:]] == ["tcp dport 2 drop"]


def test_a_batch_with_a_mistake_changes_nothing() -> None:
    shown = in_namespace(
        "nft.install('t', [nft.Chain('c', 'filter', 0, nft.ACCEPT, [])])\n"
        "try:\n nft.install('t', [nft.Chain('other', 'no such kind', 0, nft.ACCEPT, [])])\n"
        "except OSError as error: print('refused', error.errno)\nshow()"
    )
    assert "refused" in shown
    assert "chain c" in shown
    assert "other" not in shown


def test_tables_are_listed_and_removed() -> None:
    shown = in_namespace(
        "import json\nnft.install('one', [])\nnft.install('two', [])\nbefore = nft.list_tables()\n"
        "nft.remove('one')\nnft.remove('one')\nprint(json.dumps([before, nft.list_tables()]))"
    )
    assert json.loads(shown) == [["one", "two"], ["two"]]


def test_a_table_of_ones_own_is_guarded_replaced_and_removed() -> None:
    shown = in_namespace(
        "own = nft.OwnTable('own', [nft.Chain('c', 'filter', 0, nft.ACCEPT, [])])\n"
        "try:\n nft.OwnTable('own', [])\nexcept (FileExistsError, PermissionError): print('exists')\n"
        "print(nft.list_tables())\nown.replace([nft.Chain('d', 'filter', 0, nft.ACCEPT, [])])\nshow()\n"
        "own.remove()\nprint(nft.list_tables())"
    )
    assert shown.startswith("exists\n['own']\n")
    assert "chain d" in shown
    assert "chain c" not in shown
    assert shown.rstrip().endswith("[]")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_sockets_of_a_jail_are_bound_to_its_loopback(family: socket.AddressFamily) -> None:
    shown = in_namespace(
        "s = network.build_network([])\n"
        f"print([[e.getsockname()[:2] for e in each if e.family == {int(family)}]"
        " for each in (s.tcp, s.dns_udp, s.dns_tcp)])"
    )
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    assert shown.strip() == str([[(address, 61080)], [(address, 53)], [(address, 53)]])
