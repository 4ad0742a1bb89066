"""The command line: exit statuses, and what is printed (A8, F2)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import exeat
from exeat.audit.journal import open_journal
from exeat.audit.record import encode_event
from exeat.cli.main import main

TOML = """\
allow = [
  "api.github.com",
  "*.wild.test:8080",
  "docs.test methods=GET|HEAD paths=/pub/**",
  "[2001:db8::1]:443",
]
deny = ["gist.github.com", "bad.wild.test:*"]
"""


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROXY_ALLOWLIST", "EXEAT_POLICY", "EXEAT_ADD_HOSTS", "EXEAT_PRIVATE_NETWORKS"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "policy.toml"
    file.write_text(TOML)
    return file


# what is asked, exit status, reason, the place of the rule that decided
CASES = [
    ("https://api.github.com/", 0, "allowed", ":2:4"),
    ("api.github.com", 0, "allowed", ":2:4"),
    ("API.GitHub.com.:443", 0, "allowed", ":2:4"),
    ("http://api.github.com/x?y#z", 0, "allowed", ":2:4"),
    ("wss://api.github.com", 0, "allowed", ":2:4"),
    ("https://api.github.com:22/", 1, "port-not-listed", ":2:4"),
    ("ssh://api.github.com", 1, "port-not-listed", ":2:4"),
    ("https://a.wild.test:8080/", 0, "allowed", ":3:4"),
    ("https://wild.test:8080/", 1, "not-listed", ""),
    ("bad.wild.test:8080", 1, "denied-by-rule", ":7:29"),
    ("https://gist.github.com", 1, "denied-by-rule", ":7:10"),
    ("http://docs.test/pub/a", 0, "allowed", ":4:4"),
    ("http://docs.test/pub/../secret", 1, "path-not-listed", ":4:4"),
    ("https://docs.test/pub/a", 0, "allowed", ":4:4"),
    ("https://docs.test/secret", 1, "path-not-listed", ":4:4"),
    ("docs.test:443", 1, "needs-interception", ":4:4"),
    ("https://[2001:db8::1]/", 0, "allowed", ":5:4"),
    ("https://[2001:db8::2]/", 1, "address-not-listed", ""),
    ("https://evil.test", 1, "not-listed", ""),
]


@pytest.mark.parametrize(("target", "status", "reason", "place"), CASES, ids=[case[0] for case in CASES])
def test_check_explains_a_verdict(
    target: str, status: int, reason: str, place: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A8: 0 or 1; as text and as JSON; the rule's file, line and column; what would have to change."""
    assert main(["check", target, "--policy", str(policy)]) == status
    text = capsys.readouterr().out
    assert text.startswith("allowed " if status == 0 else "denied ")
    assert (f"({policy}{place})" in text) == bool(place)
    assert ("\n  change  " in text) == (status == 1)
    assert main(["check", target, "--json", "--policy", str(policy)]) == status
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["verdict", "reason", "target", "host", "port", "rule", "where", "why", "change", "leads"]
    assert (found["verdict"], found["reason"]) == ("deny" if status else "allow", reason)
    assert found["where"] == (f"{policy}{place}" if place else None)


def test_check_judges_the_method(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A7: --method for a plain URL."""
    assert main(["check", "http://docs.test/pub/a", "--method", "DELETE", "--policy", str(policy)]) == 1
    assert "does not list the method" in capsys.readouterr().out


@pytest.mark.parametrize(
    "target", ["http://", "a b", "http://0x7f.1/", "http://x@y.test/", "gopher://x.test/", "x:0", ""]
)
def test_check_refuses_what_is_no_target(target: str, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A3: exit 2, on stderr, with what was expected; nothing on stdout."""
    assert main(["check", target, "--policy", str(policy)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("exeat: ")
    assert "expected: " in err


def test_check_names_the_place_of_a_broken_rule(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A8: file, line and column in the message, and exit 2."""
    policy.write_text('allow = [\n  "good.test",\n  "good.test:99999",\n]\n')
    assert main(["check", "good.test", "--policy", str(policy)]) == 2
    assert f"{policy}:3:" in capsys.readouterr().err


def test_check_reads_options_and_variables(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A2: one grammar everywhere, and the source is named."""
    monkeypatch.setenv("PROXY_ALLOWLIST", "env.test:8080, second.test")
    monkeypatch.setenv("EXEAT_POLICY", str(policy))
    for arguments, source in (
        (["api.github.com"], str(policy)),
        (["second.test"], "PROXY_ALLOWLIST"),
        (["opt.test", "--allow", "opt.test"], "--allow"),
        (["second.test", "--deny", "second.test"], "--deny"),
    ):
        main(["check", *arguments])
        assert source in capsys.readouterr().out, arguments


def test_check_says_where_a_name_may_lead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Networks that are declared, whichever way, are named. A rule with private needs none; an address is no name."""
    for name in ("PROXY_ALLOWLIST", "EXEAT_POLICY", "EXEAT_ADD_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXEAT_PRIVATE_NETWORKS", "10.2.0.0/16, fd12:3456:789a::/48")
    options = [
        "--private-network",
        "10.1.0.0/16",
        "--allow",
        "a.test",
        "--allow",
        "b.test private",
        "--allow",
        "10.1.2.3",
    ]
    for target, leads in (
        ("https://a.test/", "10.2.0.0/16, fd12:3456:789a::/48, 10.1.0.0/16 because of private_networks"),
        ("https://b.test/", "to any address, because of private"),
        ("https://10.1.2.3/", ""),
    ):
        assert main(["check", target, *options]) == 0
        said = capsys.readouterr().out
        assert leads in said
        assert ("\n  leads   " in said) == bool(leads)
    assert main(["check", "https://10.1.9.9/", *options]) == 1  # an address needs a rule of its own


@pytest.mark.parametrize("network", ["10.1.0.0", "127.0.0.0/8", "0.0.0.0/0", "10.1.2.3/16", "x", ""])
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_network_that_cannot_be_meant_is_an_error(
    network: str, by_variable: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A3: exit 2, with where it was written. A single address is a network too, and an empty variable is none."""
    options = [] if by_variable else ["--private-network", network]
    monkeypatch.setenv("EXEAT_PRIVATE_NETWORKS", network if by_variable else "")
    good = network == "10.1.0.0" or (by_variable and not network)
    assert main(["check", "good.test", "--allow", "good.test", *options]) == (0 if good else 2)
    if not good:
        err = capsys.readouterr().err
        assert ("EXEAT_PRIVATE_NETWORKS item 1" if by_variable else "--private-network #1") in err


def test_output_cannot_carry_escape_sequences(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """J3: what a user pastes is shown escaped."""
    main(["check", "http://\x1b[31mevil.test/", "--policy", str(policy)])
    main(["check", "http://evil.test/", "--method", "\x1b[31m", "--policy", str(policy)])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err


# What real URLs look like
STRANGE = ["/a%2Fb", "/a\\b", "/a%zz", "/\u00fc/\u4e2d", "/a%00b"]


@pytest.mark.parametrize("path", STRANGE)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_strange_path_matters_only_where_a_rule_looks_at_paths(
    scheme: str, path: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the gateway does it: it passes, or is denied for its host; only a rule on paths must be able to read it."""
    assert main(["check", f"{scheme}://api.github.com{path}", "--policy", str(policy)]) == 0
    assert main(["check", f"{scheme}://evil.test{path}", "--policy", str(policy)]) == 1
    capsys.readouterr()
    status = main(["check", f"{scheme}://docs.test/pub{path}", "--policy", str(policy)])
    assert status == (0 if path == "/\u00fc/\u4e2d" else 2)
    assert "\x1b" not in "".join(capsys.readouterr())


def test_an_address_that_was_given_for_a_name_is_judged_too(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A denial of the address beats the allowance of the name."""
    given = ["check", "good.test", "--allow", "good.test", "--add-host", "good.test:10.1.2.3", "--json"]
    assert main(given) == 0, "the control: whoever gives an address wants to reach it"
    capsys.readouterr()
    assert main([*given, "--deny", "10.0.0.0/8"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["reason"], found["rule"], found["where"]) == ("denied-by-rule", "!10.0.0.0/8", "--deny #1")
    assert found["why"].startswith("It leads to 10.1.2.3 (--add-host).")


# audit verify


def write_log(path: Path) -> None:
    async def write() -> None:
        async with open_journal(str(path)) as journal:
            for number in range(5):
                await journal.commit(encode_event("note", number=number))

    asyncio.run(write())


def test_audit_verify_tells_an_intact_log_from_a_changed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F2: 0 for intact, 1 with the line for each way of changing it, 2 for what cannot be read."""
    log = tmp_path / "audit.jsonl"
    write_log(log)
    assert main(["audit", "verify", str(log)]) == 0
    good = log.read_bytes()
    lines = good.splitlines(keepends=True)
    for changed in (
        good.replace(b'"number":2', b'"number":7'),
        b"".join(lines[:2] + lines[3:]),
        b"".join([*lines[:2], lines[3], lines[2], *lines[4:]]),
        b"".join([*lines[:3], lines[2], *lines[3:]]),
        good[:-20],
    ):
        log.write_bytes(changed)
        capsys.readouterr()
        assert main(["audit", "verify", str(log)]) == 1
        assert capsys.readouterr().out
    log.write_bytes(b"".join(lines[:-1]))
    assert main(["audit", "verify", str(log)]) == 0, "a cut tail shows only against a head kept elsewhere"
    head = json.loads(lines[-1])["hash"]
    assert main(["audit", "verify", str(log), "--head", head]) == 1
    log.write_bytes(good)
    assert main(["audit", "verify", str(log), "--head", head]) == 0
    assert main(["audit", "verify", str(tmp_path / "missing.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err


# The command itself


def test_help_of_serve_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """B8: what the settings read, the help tells."""
    from exeat.cli import options
    from exeat.cli import serve as module
    from exeat.serve import settings

    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    import re

    source = "".join(Path(str(each.__file__)).read_text() for each in (settings, options, module))
    not_for_serve = {"EXEAT_WORKER_FD", "EXEAT_SECRETS_JSON"}  # between processes of ours; for `run`
    read = set(re.findall(r'"((?:EXEAT|PROXY)_[A-Z_]+)"', source)) - not_for_serve
    missing = [name for name in sorted(read) if name not in text]
    assert missing == []


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["check"], ["audit"], ["serve", "--nonsense"]])
def test_a_wrong_command_line_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own status, with the usage on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: exeat" in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    """`python -m exeat --version`."""
    ran = subprocess.run(
        [sys.executable, "-m", "exeat", "--version"], capture_output=True, text=True, check=True, timeout=20
    )
    assert ran.stdout == f"exeat {exeat.__version__}\n"


def test_a_reader_that_leaves_is_no_error(policy: Path) -> None:
    """`exeat check … | true` ends quietly."""
    script = f"{sys.executable} -m exeat check evil.test --policy {policy} | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=20)
    assert ran.stderr == ""
    assert ran.returncode in (1, 141)
