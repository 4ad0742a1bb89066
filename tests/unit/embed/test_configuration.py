"""Configurations of a `SandboxManager`: what they mean, and every way in which one is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from exeat.embed.command_line import check_command, run_options
from exeat.embed.configuration import Configuration, read_configuration
from exeat.embed.sandbox_manager import SandboxManager
from exeat.errors import ConfigError

RULES = ["good.test"]


def sandbox(*, network: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return {"sandbox": settings | ({} if network is None else {"network": network})}


def read(*, network: dict[str, Any] | None = None, asks: bool = False, **settings: Any) -> Configuration:
    return read_configuration(sandbox(network=network, **settings), asks=asks)


# What is left out


def test_nothing_said_means_that_nothing_is_allowed() -> None:
    """A1: there is a sandbox, it is on, and no rule means no way out. That is said aloud."""
    found = read()
    assert (found.enabled, found.allow_network, found.allowed, found.jail) == (True, True, (), "auto")
    assert found.warnings == ("sandbox.network.allowed_domains has no rule, so nothing is allowed",)
    assert run_options(found) == ["run", "--jail=auto"]


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"network": {"allowed_domains": RULES}}, ""),
        ({"network": {"allowed_domains": []}}, "has no rule, so nothing is allowed"),
        ({"network": {"allowed_domains": ["!bad.test"]}}, "has no rule, so nothing is allowed"),
        ({"allow_network": False}, ""),
        ({"allow_network": False, "network": {"allowed_domains": []}}, ""),
        ({"allow_network": False, "network": {"denied_domains": []}}, ""),
        ({"name": "work"}, ""),
        ({"name": "work", "network": {"denied_domains": ["bad.test"]}}, ""),
        ({"network": {"proxy": "http://127.0.0.1:8888"}}, ""),
        ({"enabled": False, "network": {"allowed_domains": RULES}}, "without a sandbox"),
        ({"jail": "env", "network": {"allowed_domains": RULES}}, "not a boundary"),
    ],
)
def test_what_is_good_and_what_is_warned_of(given: dict[str, Any], warned: str) -> None:
    manager = SandboxManager({"sandbox": given})
    assert len(manager.warnings) == bool(warned)
    assert all(warned in each for each in manager.warnings)


# What is refused: the configuration, the key that the error names, and a part of what it says.

REFUSED = [
    ({}, "configuration", "there is no sandbox"),
    ({"sandbox": []}, "sandbox", "a list"),
    ({"sandbox": None}, "sandbox", "null"),
    ({"sandbox": {}, "sandbx": {}}, "sandbx", "not a key of a configuration"),
    (sandbox(enable=True), "sandbox.enable", "'enable' is not a key of sandbox"),
    (sandbox(enabled="yes"), "sandbox.enabled", "a string"),
    (sandbox(enabled=1), "sandbox.enabled", "a number"),
    (sandbox(enabled=None), "sandbox.enabled", "null"),
    (sandbox(allow_network="false"), "sandbox.allow_network", "a string"),
    (sandbox(network={"allow_domains": RULES}), "sandbox.network.allow_domains", "not a key of sandbox.network"),
    (sandbox(network={"allowed_domains": "good.test"}), "sandbox.network.allowed_domains", "a string"),
    (sandbox(network={"allowed_domains": None}), "sandbox.network.allowed_domains", "null"),
    (sandbox(network={"allowed_domains": {"good.test": True}}), "sandbox.network.allowed_domains", "a table"),
    (sandbox(network={"allowed_domains": ["good.test", 7]}), "sandbox.network.allowed_domains[1]", "a number"),
    (sandbox(network={"allowed_domains": ["*.com"]}), "sandbox.network.allowed_domains[0], character 1", "*.com"),
    (sandbox(network={"allowed_domains": ["https://a.test/"]}), "sandbox.network.allowed_domains[0]", "URL"),
    (sandbox(network={"allowed_domains": [""]}), "sandbox.network.allowed_domains[0]", "empty"),
    (
        sandbox(network={"allowed_domains": RULES, "denied_domains": ["!a.test"]}),
        "sandbox.network.denied_domains[0]",
        "denies already",
    ),
    (sandbox(network={"hosts": ["a.test"]}), "sandbox.network.hosts", "a list"),
    (sandbox(network={"hosts": {"a.test": ["127.0.0.1"]}}), "sandbox.network.hosts.a.test", "a list"),
    (sandbox(network={"hosts": {"a.test": "b.test"}}), "sandbox.network.hosts.a.test", "not an IP address"),
    (sandbox(network={"hosts": {"10.0.0.1": "10.0.0.2"}}), "sandbox.network.hosts.10.0.0.1", "only a name"),
    (sandbox(network={"private_networks": "10.1.0.0/16"}), "sandbox.network.private_networks", "a string"),
    (sandbox(network={"private_networks": ["127.0.0.0/8"]}), "sandbox.network.private_networks[0]", "loopback"),
    (sandbox(network={"proxy": 8888}), "sandbox.network.proxy", "a number"),
    (sandbox(network={"proxy": ""}), "sandbox.network.proxy", "empty"),
    (sandbox(network={"proxy": "127.0.0.1:8888"}), "sandbox.network.proxy", "not the URL of a proxy"),
    (sandbox(network={"proxy": "ftp://127.0.0.1:8888"}), "sandbox.network.proxy", "not the URL of a proxy"),
    (sandbox(network={"proxy": "http://127.0.0.1:x"}), "sandbox.network.proxy", "not a URL"),
    (sandbox(network={"proxy": "http://p.test:1/path"}), "sandbox.network.proxy", "no path"),
    (sandbox(network={"proxy": "http://p.test:1\n"}), "sandbox.network.proxy", "not the URL of a proxy"),
    (sandbox(network={"proxy": "http://0x7f.1:1"}), "sandbox.network.proxy", ""),
    (sandbox(audit_log=""), "sandbox.audit_log", "empty"),
    (sandbox(audit_log="-"), "sandbox.audit_log", "standard output belongs to the command"),
    (sandbox(audit_log="a\0b"), "sandbox.audit_log", "NUL"),
    (sandbox(name="../etc"), "sandbox.name", "not a sandbox name"),
    (sandbox(jail="none"), "sandbox.jail", "not a jail"),
    (sandbox(secrets="/nowhere/secrets.toml"), "/nowhere/secrets.toml", "cannot be read"),
    (sandbox(upstream_ca="ca.pem"), "sandbox.upstream_ca", "no TLS is looked into"),
    (sandbox(filesystem=[]), "sandbox.filesystem", "a list"),
    (sandbox(filesystem={"allowWrite": []}), "sandbox.filesystem.allowWrite", "not a key of sandbox.filesystem"),
    (sandbox(filesystem={"allow_write": "/a"}), "sandbox.filesystem.allow_write", "a string"),
    (sandbox(filesystem={"deny_read": None}), "sandbox.filesystem.deny_read", "null"),
    (sandbox(filesystem={"deny_read": ["/a", 7]}), "sandbox.filesystem.deny_read[1]", "a number"),
    (sandbox(filesystem={"deny_write": [""]}), "sandbox.filesystem.deny_write[0]", "empty"),
    (sandbox(filesystem={"allow_read": ["a\0"]}), "sandbox.filesystem.allow_read[0]", "NUL"),
    (sandbox(filesystem={"mode": "real"}), "sandbox.filesystem.mode", "not a mode"),
    (sandbox(filesystem={"layer_size": "much"}), "sandbox.filesystem.layer_size", "not a layer size"),
    (sandbox(filesystem={"layer_size": True}), "sandbox.filesystem.layer_size", "true or false"),
    (sandbox(filesystem={"layer_size": None}), "sandbox.filesystem.layer_size", "null"),
    (sandbox(filesystem={"nest": "yes"}), "sandbox.filesystem.nest", "a string"),
    (sandbox(filesystem={"mode": "host", "deny_read": ["/a"]}), "sandbox.filesystem.deny_read", "files of the host"),
    (sandbox(filesystem={"mode": "host", "deny_write": ["/a"]}), "sandbox.filesystem.deny_write", "files of the host"),
    (sandbox(jail="env", filesystem={"deny_read": ["/a"]}), "sandbox.filesystem", "does not confine files"),
    (sandbox(jail="seatbelt", filesystem={"nest": True}), "sandbox.filesystem", "does not confine files"),
    # Contradictions
    (
        sandbox(allow_network=False, network={"allowed_domains": RULES}),
        "sandbox.network.allowed_domains",
        "allow_network is false",
    ),
    (
        sandbox(allow_network=False, network={"allowed_domains": ["!a.test"]}),
        "sandbox.network.allowed_domains",
        "allow_network is false",
    ),
    (
        sandbox(allow_network=False, network={"proxy": "http://p.test:1"}),
        "sandbox.network.proxy",
        "allow_network is false",
    ),
    (
        sandbox(allow_network=False, network={"hosts": {"a.test": "127.0.0.1"}}),
        "sandbox.network.hosts",
        "allow_network is false",
    ),
    (
        sandbox(allow_network=False, network={"private_networks": ["10.1.0.0/16"]}),
        "sandbox.network.private_networks",
        "allow_network is false",
    ),
    (
        sandbox(network={"proxy": "http://p.test:1", "private_networks": ["10.1.0.0/16"]}),
        "sandbox.network.private_networks",
        "the proxy decides",
    ),
    (sandbox(allow_network=False, name="work"), "sandbox.name", "allow_network is false"),
    (sandbox(allow_network=False, jail="env"), "sandbox.jail", "only sets variables"),
    (
        sandbox(enabled=False, allow_network=False, network={"allowed_domains": RULES}),
        "sandbox.network.allowed_domains",
        "allow_network is false",
    ),
    (sandbox(name="work", audit_log="a.jsonl"), "sandbox.audit_log", "its own log"),
    (sandbox(network={"denied_domains": ["a.test"]}), "sandbox.network.denied_domains", "nothing is allowed"),
    (
        sandbox(network={"proxy": "http://p.test:1", "allowed_domains": RULES}),
        "sandbox.network.allowed_domains",
        "the proxy decides",
    ),
    (
        sandbox(network={"proxy": "http://p.test:1", "allowed_domains": []}),
        "sandbox.network.allowed_domains",
        "the proxy decides",
    ),
    (
        sandbox(network={"proxy": "http://p.test:1", "denied_domains": ["a.test"]}),
        "sandbox.network.denied_domains",
        "the proxy decides",
    ),
    (
        sandbox(network={"proxy": "http://p.test:1", "hosts": {"a.test": "127.0.0.1"}}),
        "sandbox.network.hosts.a.test",
        "the proxy decides",
    ),
    (sandbox(name="work", network={"proxy": "http://p.test:1"}), "sandbox.name", "the proxy decides"),
    (sandbox(jail="seatbelt", network={"proxy": "http://p.test:1"}), "sandbox.network.proxy", "no way to it"),
]


@pytest.mark.parametrize(("given", "key", "said"), REFUSED)
def test_a_mistake_is_an_error_that_names_the_key(given: dict[str, Any], key: str, said: str) -> None:
    """As a dict and as JSON text, and never when a command is run: when the manager is made."""
    with pytest.raises(ConfigError) as error:
        SandboxManager(given)
    assert error.value.where.startswith(key)
    assert said in error.value.public
    with pytest.raises(ConfigError) as error:
        SandboxManager(json.dumps(given))
    assert key.partition(",")[0] in error.value.where
    assert said in error.value.public


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (sandbox(allow_network=False), "sandbox.allow_network"),
        (sandbox(network={"proxy": "http://p.test:1"}), "sandbox.network.proxy"),
    ],
)
def test_nobody_is_asked_where_there_is_nothing_to_decide(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        SandboxManager(given, ask=lambda question: True)
    assert error.value.where == key


def test_secrets_contradict_what_has_no_network_or_another_proxy(tmp_path: Path) -> None:
    """A secret's hosts may be reached by that alone. And the file is read at once, so that its mistakes show."""
    file = tmp_path / "secrets.toml"
    file.write_text('[KEY]\nenv = "KEY"\nhosts = ["api.test"]\n')
    file.chmod(0o600)
    assert read(secrets=str(file)).warnings == ()
    for given in ({"allow_network": False}, {"network": {"proxy": "http://p.test:1"}}):
        with pytest.raises(ConfigError, match=r"sandbox\.secrets"):
            SandboxManager({"sandbox": {"secrets": str(file), **given}})
    file.write_text('[KEY]\nenv = "KEY"\nhost = ["api.test"]\n')
    with pytest.raises(ConfigError, match=r"secrets\.toml:3"):
        read(secrets=str(file))


# Where it comes from


def test_a_file_is_read_and_paths_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sandbox.json"
    file.write_text(json.dumps(sandbox(audit_log="logs/audit.jsonl", network={"allowed_domains": RULES})))
    monkeypatch.chdir("/")
    for given in (file, str(file)):
        assert read_configuration(given).audit_log == str(tmp_path / "logs/audit.jsonl")
    assert read(audit_log="audit.jsonl").audit_log == "/audit.jsonl"


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ('{"sandbox": {"enabled": true, "enabled": false}}', "configuration:1:32", "'enabled' is given twice"),
        ('{"sandbox": {}, "sandbox": {"enabled": false}}', "configuration:1:18", "'sandbox' is given twice"),
        ('{"sandbox": {', "configuration:1:14", "not valid JSON"),
        ('{"sandbox": {"enabled": NaN}}', "configuration:1", "not valid JSON"),
        ('{"sandbox":\n {"network": {"allowed_domains": ["good.test", "*.com"]}}}',
         "configuration:2:49: sandbox.network.allowed_domains[1]", "*.com"),
        ('{"sandbox":\n {"netwrk": {}}}', "configuration:2:4: sandbox.netwrk", "not a key of sandbox"),
    ],
)  # fmt: skip
def test_json_is_refused_with_its_place(text: str, where: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        SandboxManager(text)
    assert error.value.where == where
    assert said in error.value.public


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_bytes(b'{"\xff')
    for name, said in (("gone", "No such file"), ("fifo", "not a regular"), (".", "directory"), ("text", "not UTF-8")):
        with pytest.raises(ConfigError, match=said):
            SandboxManager(str(tmp_path / name))
    others: list[Any] = [None, 7, [], b"{}"]
    for given in others:
        with pytest.raises(ConfigError):
            SandboxManager(given)


# Command lines


def test_the_options_of_a_run() -> None:
    found = read(
        jail="netns",
        audit_log="/var/log/a.jsonl",
        network={
            "allowed_domains": ["good.test:8080 private", "!bad.good.test"],
            "denied_domains": ["worse.test"],
            "hosts": {"good.test": "::1"},
            "private_networks": ["10.1.0.0/16"],
        },
    )
    assert run_options(found) == [
        "run",
        "--jail=netns",
        "--allow=good.test:8080 private",
        "--allow=!bad.good.test",
        "--deny=worse.test",
        "--add-host=good.test:::1",
        "--private-network=10.1.0.0/16",
        "--audit=/var/log/a.jsonl",
    ]


@pytest.mark.parametrize(
    ("url", "rule", "told"),
    [
        ("http://127.0.0.1:8888", "127.0.0.1:8888 proxy", "http://127.0.0.1:8888"),
        ("http://localhost:8888/", "127.0.0.1:8888 proxy", "http://127.0.0.1:8888"),
        ("http://[::1]:3128", "[::1]:3128 proxy", "http://[::1]:3128"),
        ("https://Proxy.Test", "proxy.test:443 private proxy", "https://proxy.test:443"),
        ("socks5h://10.0.0.1", "10.0.0.1:1080 proxy", "socks5h://10.0.0.1:1080"),
    ],
)
def test_a_proxy_is_the_only_thing_that_is_reached(url: str, rule: str, told: str) -> None:
    """localhost is the jail's own, so the address is told. What a proxy's name leads to is mostly inside."""
    words = run_options(read(network={"proxy": url}))
    assert [word for word in words if word.startswith("--allow")] == [f"--allow={rule}"]
    assert {f"--env={name}={told}" for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY")} < set(words)
    assert "--no-proxy-env" in words


def test_a_password_is_on_no_command_line_and_in_no_text() -> None:
    manager = SandboxManager(sandbox(network={"proxy": "http://user:hunter2@127.0.0.1:8888"}))
    words = manager.wrap(["true"])
    assert "hunter2" not in " ".join(words)
    assert "--env=HTTP_PROXY" in words
    assert "hunter2" not in repr(manager.configuration)
    assert manager.environ({"A": "b"}) == {"A": "b", "EXEAT_OUTER_PROXY": "http://user:hunter2@127.0.0.1:8888"}
    for bad in ("http://user:hunter2@127.0.0.1:8888/path", "http://user:hunter2@bad_:host:1", "x://user:hunter2@a"):
        with pytest.raises(ConfigError) as error:
            read(network={"proxy": bad})
        assert "hunter2" not in f"{error.value} {error.value.detail} {error.value.__cause__}"


@pytest.mark.parametrize("argv", [[], "true", [""], ["a\0b"], ["true", 7], None, [b"true"]])
def test_what_is_no_command_is_refused(argv: Any) -> None:
    with pytest.raises(ConfigError, match="not a command"):
        check_command(argv)


def test_wrap_leaves_a_command_alone_when_the_sandbox_is_off() -> None:
    assert SandboxManager(sandbox(enabled=False)).wrap(["ls", Path("/tmp")]) == ["ls", "/tmp"]


def test_wrap_cannot_ask() -> None:
    with pytest.raises(ConfigError, match="can answer questions"):
        SandboxManager(sandbox(), ask=lambda question: True).wrap(["true"])
