"""Secrets files as texts, read or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exeat.errors import ConfigError
from exeat.secrets.model import SecretSpec
from exeat.secrets.setup.config import combine, parse_secrets

VALUE = "Qx7-REAL-credential-93"


def read(text: str, name: str = "s.toml") -> dict[str, SecretSpec]:
    return {spec.name: spec for spec in combine([parse_secrets(text, name)])}


def refused(call: Callable[[], object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call()
    error = caught.value
    assert VALUE not in f"{error} {error!r} {error.public} {error.where} {error.expected} {error.detail}"
    return error


# What is refused

HOSTS = 'hosts = ["a.test"]'
