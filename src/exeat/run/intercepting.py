"""In the gateway's process: fetch the secrets, make the certificates, and say what the command is to get of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from exeat.errors import ConfigError
from exeat.gateway.interception import HTTP1, Intercept, Interception
from exeat.policy import Pattern, Policy
from exeat.run.preparations import Preparations, TrustFiles, file_in_memory
from exeat.run.scrubbing import scrub_environment
from exeat.secrets.codings import load_codings
from exeat.secrets.model import Secret, SecretSpec
from exeat.secrets.values import fetch, files_to_hide, variables_to_drop
from exeat.secrets.vault import Vault
from exeat.sources import Loaded
from exeat.trust.authority import Authority, Contexts
from exeat.trust.roots import UpstreamTrust, find_caller_roots, find_system_roots
from exeat.trust.store import certificates_of, combined_bundle, java_key_store, subject_hash

# Loaded by the gateway when it first needs them; by then nothing is to be loaded any more.
NEEDED_LATER = (
    "exeat.gateway.http2_front", "exeat.gateway.http2_back", "exeat.secrets.treatment", "exeat.trust.roots",
    "subprocess", "json",
)  # fmt: skip


def is_needed(loaded: Loaded) -> bool:
    """Is there anything to look into?"""
    if loaded.intercept == Intercept.NONE:
        return False
    return bool(loaded.secrets) or loaded.intercept == Intercept.ALL or any(r.conditional for r in loaded.policy.rules)


class Intercepting:
    """The secrets and certificates of one run. Made in two steps: what the jail needs comes first."""

    def __init__(self, loaded: Loaded, upstream_ca: Sequence[str]) -> None:
        """Raises ConfigError for a secret without a value, or roots that cannot be used."""
        self._environ = dict(os.environ)
        self._loaded = loaded
        self.secrets: tuple[Secret, ...] = fetch(loaded.secrets, self._environ) if loaded.secrets else ()
        self._trust = UpstreamTrust(upstream_ca, self._environ)
        self._authority = Authority(_permitted(loaded))
        if loaded.secrets:
            scrub_environment(variables_to_drop(loaded.secrets))

    def preparations(self) -> Preparations:
        loaded = self._loaded
        own = self._authority.certificate_pem
        added = find_caller_roots(self._environ)  # by variables that will lead to our files
        bundle = combined_bundle(find_system_roots(self._environ) + added, own)
        trust = TrustFiles(
            file_in_memory(bundle),
            file_in_memory(combined_bundle(added, own)),
            file_in_memory(java_key_store(certificates_of(bundle))),
            subject_hash(self._authority.certificate_der),
        )
        return Preparations(
            {each.name: each.placeholder.decode("ascii") for each in self.secrets},
            sorted(variables_to_drop(loaded.secrets)),
            files_to_hide(loaded.secrets),
            [*loaded.warnings, *_announce(loaded.policy, loaded.secrets)],
            trust,
        )

    def interception(self) -> Interception:
        """What the gateway works with. Everything that it needs later is loaded here."""
        load_codings()
        self._trust.context(HTTP1)  # 25 ms, while the jail is being built; the others when they are needed
        mode = Intercept(self._loaded.intercept)
        return Interception(mode, Vault(self.secrets), Contexts(self._authority), self._trust.context)

    @property
    def environ(self) -> dict[str, str]:
        """As it was at the start: for commands that renew a secret."""
        return self._environ


def refuse_without_use(upstream_ca: Sequence[str]) -> None:
    """An option that would have no effect is a mistake that somebody should hear of."""
    if upstream_ca:
        raise ConfigError(
            "nothing is intercepted, so no server's certificate is checked here",
            where=f"--upstream-ca {upstream_ca[0]}",
            expected="secrets, rules with methods or paths, or --intercept all",
        )


def _permitted(loaded: Loaded) -> list[Pattern]:
    """The hosts that certificates are made for, as narrow as the rules allow to say it."""
    allowing = [rule for rule in loaded.policy.rules if not rule.deny and not rule.no_intercept]
    denies_requests = any(rule.deny and rule.conditional for rule in loaded.policy.rules)
    if loaded.intercept == Intercept.ALL or denies_requests:
        return [rule.pattern for rule in allowing]
    wanted = [rule.pattern for rule in allowing if rule.conditional]
    return wanted + [rule.pattern for secret in loaded.secrets for rule in secret.hosts]


def _announce(policy: Policy, secrets: Sequence[SecretSpec]) -> list[str]:
    """One line for each secret: where it may go, and that this allows it."""
    implied = {rule.text for rule in policy.rules if rule.implied}
    lines = []
    for secret in secrets:
        hosts = [rule.text for rule in secret.hosts]
        note = " (allowed by that)" if any(text in implied for text in hosts) else ""
        lines.append(f"{secret.name} is a placeholder; its value goes to {', '.join(hosts)} only{note}")
    return lines
