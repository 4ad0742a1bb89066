"""The command's environment, from the caller's and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exeat.errors import ConfigError
from exeat.jail.environment import Variables

URL = "http://127.0.0.1:61080"


def build(
    inherited: Mapping[str, str], *wanted: str, clean: bool = False, proxies: bool = False, kept: tuple[str, ...] = ()
) -> dict[str, str]:
    """Without the sign that every command gets."""
    variables = Variables(inherited, wanted, clean)
    found = variables.build(proxy_url=URL if proxies else None, own_loopback=True, kept_sockets=kept)
    assert found.pop("EXEAT") == "1"
    return found


def test_a_command_can_tell_that_it_runs_under_exeat_and_where() -> None:
    def signs(sandbox: str, *wanted: str) -> dict[str, str]:
        given = {"EXEAT": "0", "EXEAT_SANDBOX": "outer", "EXEAT_AUDIT": "x"}
        return Variables(given, wanted, clean=True, sandbox=sandbox).build(proxy_url=None, own_loopback=True)

    assert signs("work") == {"EXEAT": "1", "EXEAT_SANDBOX": "work"}
    assert signs("") == {"EXEAT": "1"}, "the name of an outer sandbox is not passed on"
    assert signs("", "EXEAT=") == {"EXEAT": ""}, "who wants another value gets it"


def test_everything_is_inherited_but_what_is_exeats() -> None:
    given = {"A": "1", "PATH": "/bin", "EXEAT_AUDIT": "x", "EXEAT_": "x", "PROXY_ALLOWLIST": "x", "PROXY_PORT": "1"}
    assert build(given) == {"A": "1", "PATH": "/bin"}


def test_names_that_only_look_like_exeats_stay() -> None:
    given = {"MY_EXEAT_X": "1", "exeat_x": "2", "PROXY_ALLOWLIST_2": "3", "EXEATX": "4"}
    assert build(given) == given


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"])
def test_proxies_are_set_in_both_cases_or_not_at_all(name: str) -> None:
    given = {name: "http://other", name.lower(): "http://other", "NO_PROXY": "*", "no_proxy": "*"}
    assert build(given) == {}
    found = build(given, proxies=True)
    assert found[name] == found[name.lower()] == URL
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1"
    assert len(found) == 8


def test_where_loopback_is_the_hosts_nothing_goes_past_the_proxy() -> None:
    found = Variables({"NO_PROXY": "*"}).build(proxy_url=URL, own_loopback=False)
    assert found["NO_PROXY"] == found["no_proxy"] == ""


def test_what_was_asked_for_beats_everything() -> None:
    given = {"A": "1", "EXEAT_X": "2", "SSH_AUTH_SOCK": "/s", "SECRET": "3"}
    assert build(given, "A=", "NEW=a=b", "EXEAT_X", "SSH_AUTH_SOCK", clean=True) == {
        "A": "",
        "NEW": "a=b",
        "EXEAT_X": "2",
        "SSH_AUTH_SOCK": "/s",
    }
    assert build({}, "HTTP_PROXY=x", proxies=True)["HTTP_PROXY"] == "x"


@pytest.mark.parametrize("wanted", ["", "=", "=x", "A\0B=1", "A=1\0"])
def test_a_name_must_be_there(wanted: str) -> None:
    with pytest.raises(ConfigError, match="not a variable name"):
        build({}, wanted)


def test_a_name_alone_must_be_set() -> None:
    with pytest.raises(ConfigError, match="not set"):
        build({"A": "1"}, "B")


def test_a_clean_environment() -> None:
    kept = {"PATH": "1", "HOME": "2", "TERM": "3", "LANG": "4", "LC_ALL": "5", "LC_TIME": "6", "TZ": "7", "PWD": "8"}
    assert build(kept | {"TOKEN": "x", "LCD": "x", "path": "x", "SSH_AUTH_SOCK": "/s"}, clean=True) == kept


@pytest.mark.parametrize(
    "name",
    ["SSH_AUTH_SOCK", "SSH_AGENT_PID", "DBUS_SESSION_BUS_ADDRESS", "WAYLAND_DISPLAY", "LISTEN_FDS", "NOTIFY_SOCKET"],
)
def test_a_way_to_a_hidden_socket_is_kept_only_with_the_socket(name: str) -> None:
    assert build({name: "/run/s"}) == {}
    assert build({name: "/run/s"}, kept=("/run/s",)) == {name: "/run/s"}
    assert build({name: "/run/s"}, kept=("/run/other",)) == {}


def test_the_callers_own_mapping_is_not_changed() -> None:
    given = {"A": "1", "HTTP_PROXY": "x"}
    build(given, "A=2", proxies=True)
    assert given == {"A": "1", "HTTP_PROXY": "x"}


def test_who_wants_no_proxy_variables_has_none() -> None:
    assert "HTTP_PROXY" in Variables({}).build(proxy_url=URL, own_loopback=True)
    assert Variables({}, names_proxy=False).build(proxy_url=URL, own_loopback=True) == {"EXEAT": "1"}


def test_a_placeholder_and_whom_to_trust_beat_what_was_asked_for() -> None:
    variables = Variables({"KEY": "a"}, ("KEY=b", "CA=b"), placeholders={"KEY": "placeholder"})
    found = variables.build(proxy_url=None, own_loopback=True, trust={"CA": "/ca"})
    assert (found["KEY"], found["CA"]) == ("placeholder", "/ca")
