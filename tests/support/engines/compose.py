"""A compose file as far as the example needs it: what is not understood is an error, and nothing is left out."""

from __future__ import annotations

import json
from typing import Any

Lines = list[tuple[int, str]]


def parse(text: str) -> dict[str, Any]:
    """Tables by indentation; values are words, or JSON."""
    lines: Lines = []
    for line in text.splitlines():
        bare = line.split("  #")[0].rstrip()
        if bare and not bare.startswith("#"):
            lines.append((len(bare) - len(bare.lstrip()), bare.strip()))
    table, rest = _table(lines, 0)
    assert not rest, rest
    return table


def _table(lines: Lines, indent: int) -> tuple[dict[str, Any], Lines]:
    table: dict[str, Any] = {}
    while lines and lines[0][0] == indent:
        (_, line), *lines = lines
        key, colon, value = line.partition(":")
        assert colon, line
        assert key not in table, key
        if value.strip():
            table[key] = _value(value.strip())
        else:
            assert lines, line
            assert lines[0][0] > indent, line
            table[key], lines = _table(lines, lines[0][0])
    return table, lines


def _value(text: str) -> Any:
    return json.loads(text) if text[0] in '"[{' or text in ("true", "false") or text.isdigit() else text


_SIZES = {"m": 1 << 20, "g": 1 << 30}


def container_of(service: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """What the engine is asked for: the container, its HostConfig, and its networks."""
    rest = dict(service)
    rest.pop("depends_on", None)
    networks = list(rest.pop("networks"))
    body = {"Image": rest.pop("image"), "Env": [f"{key}={value}" for key, value in rest.pop("environment").items()]}
    if "command" in rest:
        body["Cmd"] = rest.pop("command")
    memory = rest.pop("mem_limit")
    logging = rest.pop("logging", {"driver": "", "options": {}})
    host_config = {
        "ReadonlyRootfs": rest.pop("read_only"),
        "CapDrop": rest.pop("cap_drop"),
        "SecurityOpt": rest.pop("security_opt"),
        "PidsLimit": rest.pop("pids_limit"),
        "Memory": int(memory[:-1]) * _SIZES[memory[-1]],
        "Sysctls": rest.pop("sysctls"),
        "Dns": rest.pop("dns", []),
        "Tmpfs": dict.fromkeys(rest.pop("tmpfs", []), ""),
        "RestartPolicy": {"Name": rest.pop("restart", "no")},
        "LogConfig": {"Type": logging["driver"], "Config": logging["options"]},
    }
    assert not rest, rest
    return body, host_config, networks


def network_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    rest = dict(settings)
    body = {
        "Name": name,
        "Driver": rest.pop("driver", "bridge"),
        "Internal": rest.pop("internal", False),
        "Options": rest.pop("driver_opts", {}),
    }
    assert not rest, rest
    return body
