"""Refuses options that a run with its gateway on another machine does not support, instead of ignoring them."""

from __future__ import annotations

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.gateway.limits import Limits
from exeat.policy import Policy
from exeat.run.settings import RunSettings
from exeat.sources import Loaded, RuleSources

_NOT_HERE = "an engine of this machine"


def read_policy(settings: RunSettings, *, has_secrets: bool) -> Policy:
    """Raises ConfigError for what would go unheard. `has_secrets`: the environment names some."""
    _refuse_options(settings, has_secrets=has_secrets)
    loaded = RuleSources(**settings.rules.as_dict()).load()
    _refuse_rules(loaded)
    return loaded.policy


def _refuse_options(settings: RunSettings, *, has_secrets: bool) -> None:
    no_files = "files of this machine are not where the command runs"
    asked_here = "the gateway is on the engine's machine, and cannot ask anyone here"
    options = settings.container
    refused = {
        "--secrets": (bool(settings.rules.secrets_files), "no value is sent to another machine"),
        "EXEAT_SECRETS_JSON": (has_secrets, "no value is sent to another machine"),
        "--intercept": (settings.rules.intercept == "all", "the sidecar does not look into TLS"),
        "--upstream-ca": (bool(settings.upstream_ca), "the sidecar does not look into TLS"),
        "--name": (settings.folder is not None, "a named sandbox changes its rules while it runs; a sidecar does not"),
        "--ask": (settings.ask, asked_here),
        "--learn": (settings.learn, asked_here),
        "--mount": (options is not None and bool(options.mounts), no_files),
        "--unix": (bool(settings.unix), no_files),
        "--device": (bool(settings.devices), no_files),
        "--write, --read-only, --hide, --show, --files, --layer-size, --nest": (
            any(each._replace(where="") != FileSettings() for each in settings.files),
            no_files,
        ),
        "--no-proxy-env": (not settings.proxy_env, "without these variables nothing finds the sidecar"),
    }
    for option, (is_given, why) in refused.items():
        if is_given:
            raise ConfigError(why, where=option, expected=_NOT_HERE)


def _refuse_rules(loaded: Loaded) -> None:
    refused = [
        ("[secrets]", bool(loaded.secrets), "no value is sent to another machine"),
        ("[files]", bool(loaded.files), "files of this machine are not where the command runs"),
        ("[limits]", loaded.limits != Limits(), "the sidecar has the usual limits"),
        ("intercept", loaded.intercept == "all", "the sidecar does not look into TLS"),
    ]
    for rule in loaded.policy.rules:
        network = rule.pattern.network
        is_here = network.is_loopback if network is not None else rule.pattern.name == "localhost"
        refused.append((f"rule {rule}", rule.conditional, "methods and paths: the sidecar does not look into TLS"))
        refused.append((f"rule {rule}", is_here and not rule.deny, "this machine cannot be reached from the engine's"))
    for name, addresses in loaded.policy.hosts:
        is_here = any(each.is_loopback for each in addresses)
        refused.append((f"host {name}", is_here, "this machine cannot be reached from the engine's"))
    for what, is_given, why in refused:
        if is_given:
            raise ConfigError(why, where=what, expected=_NOT_HERE)


def as_arguments(policy: Policy) -> list[str]:
    """For `exeat serve`."""
    rules = [f"--{'deny' if rule.deny else 'allow'}={str(rule).removeprefix('!')}" for rule in policy.rules]
    hosts = [f"--add-host={name}:{address}" for name, addresses in policy.hosts for address in addresses]
    return [*rules, *hosts, *(f"--private-network={each}" for each in policy.private_networks)]
