"""Checks across secrets: one name, one header, no placeholder in another, the two halves of an AWS key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from exeat.errors import ConfigError
from exeat.secrets.model import SecretSpec
from exeat.secrets.setup.hosts import overlap

_AWS_SECRET = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
_AWS_ID = "AWS_ACCESS_KEY_ID"
_AWS_SHAPE = "aws-key-id"


def combine(groups: Iterable[tuple[SecretSpec, ...]]) -> tuple[SecretSpec, ...]:
    """The secrets of all sources as one set. Raises ConfigError for any two that cannot be together."""
    found: dict[str, SecretSpec] = {}
    for spec in (spec for group in groups for spec in group):
        if spec.name in found:
            raise ConfigError(
                f"the secret {spec.name} is given twice",
                where=str(spec.written),
                expected=f"each name once; the other is at {found[spec.name].written}",
            )
        found[spec.name] = spec
    _refuse_shared_headers(found.values())
    placeholders = {spec.name: spec.placeholder.encode() for spec in found.values() if spec.placeholder}
    check_placeholders(found, placeholders)
    for spec in found.values():
        if spec.source.value is not None:
            check_hidden(spec, spec.source.value.encode(), placeholders)
    return _pair_aws_keys(found)


def check_placeholders(specs: Mapping[str, SecretSpec], placeholders: Mapping[str, bytes]) -> None:
    """Refuse a placeholder with another in it: what it stands for could not be told."""
    for name, placeholder in placeholders.items():
        for other, text in placeholders.items():
            if name != other and text in placeholder:
                raise ConfigError(
                    f"{name}: its placeholder contains that of {other}",
                    where=str(specs[name].written),
                    expected="placeholders that do not contain one another",
                )


def check_hidden(spec: SecretSpec, value: bytes, placeholders: Mapping[str, bytes]) -> None:
    """Refuse a value that a placeholder shows, and one that would itself be replaced."""
    for name, placeholder in placeholders.items():
        whose = "its placeholder" if name == spec.name else f"the placeholder of {name}"
        if value == placeholder:
            problem = f"its value is {whose}"
        elif placeholder in value:
            problem = f"its value has {whose} in it"
        elif value in placeholder:
            problem = f"its value is a part of {whose}, which anyone may see"
        else:
            continue
        raise ConfigError(f"{spec.name}: {problem}", where=str(spec.written), expected="a placeholder unlike any value")


def _refuse_shared_headers(specs: Iterable[SecretSpec]) -> None:
    by_header: dict[str, list[SecretSpec]] = {}
    for spec in specs:
        if spec.inject is None:
            continue
        others = by_header.setdefault(spec.inject.header.lower(), [])
        for other in others:
            if overlap(spec.hosts, other.hosts):
                raise ConfigError(
                    f"{spec.name}: {other.name} sets the header {spec.inject.header} for the same host",
                    where=str(spec.written),
                    expected=f"one secret for a header of a host; the other is at {other.written}",
                )
        others.append(spec)


def _pair_aws_keys(found: dict[str, SecretSpec]) -> tuple[SecretSpec, ...]:
    """Tell each AWS secret key its key id, by name if nothing is said. A key id's placeholder looks like one."""
    ids: dict[str, str] = {}  # the secret key's name -> the key id's
    for name, spec in found.items():
        if spec.aws_key_id:
            other = found.get(spec.aws_key_id)
            if other is None or not overlap(spec.hosts, other.hosts):
                problem = "is not a secret" if other is None else "has no host in common with it"
                raise ConfigError(
                    f"{name}: its aws_key_id, {spec.aws_key_id}, {problem}",
                    where=str(spec.written),
                    expected="the name of a secret for the same hosts",
                )
            ids[name] = spec.aws_key_id
        elif name.endswith(_AWS_SECRET):
            other = found.get(name.removesuffix(_AWS_SECRET) + _AWS_ID)
            if other is not None and overlap(spec.hosts, other.hosts):
                ids[name] = other.name
    for name, key_id in ids.items():
        found[name] = replace(found[name], aws_key_id=key_id)
        if not found[key_id].placeholder and not found[key_id].shape:
            found[key_id] = replace(found[key_id], shape=_AWS_SHAPE)
    return tuple(found.values())
