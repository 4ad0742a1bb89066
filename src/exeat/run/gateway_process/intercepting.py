"""In the gateway's process: makes the certificates, fetches the secrets, and reports what the command gets."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from exeat.audit.share import Log
from exeat.gateway.tls.interception import HTTP1, Intercept, Interception
from exeat.jail.environment import decoded
from exeat.jail.messages import Fetched, Trusted, send
from exeat.policy import Name, Pattern, Policy, Reason, Rule, Scope, Target, decide, is_exempt
from exeat.run.gateway_process.renewing import Renewals
from exeat.run.gateway_process.scrubbing import scrub_environment
from exeat.secrets.model import Secret, SecretSpec
from exeat.secrets.setup.config import VARIABLE
from exeat.secrets.setup.values import (
    Settle,
    end_commands,
    fetch,
    files_to_hide,
    variables_to_drop,
)
from exeat.secrets.stream.codings import load_codings
from exeat.secrets.vault import Vault
from exeat.sources import Loaded
from exeat.trust.authority import Authority, Contexts
from exeat.trust.roots import UpstreamTrust, find_caller_roots, find_system_roots
from exeat.trust.store import certificates_of, combined_bundle, java_key_store
from exeat.trust.unnamed_file import file_in_memory

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder


# A value of so many bytes is no other variable's by chance, or no part of one.
_WHOLE, _PART = 8, 16


class Intercepting:
    """The secrets and certificates of one run. Certificates come first: a jail is built with them."""

    def __init__(self, loaded: Loaded, upstream_ca: Sequence[str]) -> None:
        """Raises ConfigError for roots that cannot be used."""
        self._loaded = loaded
        self._environ: dict[str, str] = {}
        self._renewals: Renewals | None = None
        self.secrets: tuple[Secret, ...] = ()
        self._trust = UpstreamTrust(upstream_ca, os.environ)
        self._authority = Authority(permitted_hosts(loaded.policy, loaded.secrets, loaded.intercept))

    def tell_trust(self, control: socket.socket, given: dict[bytes, bytes] | None) -> None:
        """`given` is the command's environment where that is not ours. We trust no one by that."""
        passed_on = os.environ if given is None else decoded(given)
        own = self._authority.certificate_pem
        added = find_caller_roots(passed_on)  # by variables that will lead to our files
        bundle = combined_bundle(find_system_roots(passed_on) + added, own)
        contents = bundle, combined_bundle(added, own), java_key_store(certificates_of(bundle))
        files = [file_in_memory(each) for each in contents]
        try:
            send(control, Trusted(_files_with_values(self._loaded.secrets), self._authority.subject_hash), files)
        finally:
            for each in files:
                os.close(each)

    def fetch(
        self, control: socket.socket, given: dict[bytes, bytes] | None, folder: SandboxFolder | None = None
    ) -> None:
        """Get the secrets, and tell what the command is to have of them: never a value.

        None comes from `given`. `folder` is the sandbox's, if it has a name: placeholders are kept in it. Raises
        ConfigError for a secret without a value.
        """
        specs = self._loaded.secrets
        # No command that fetches a value has any use for what holds others.
        self._environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        if specs:
            self.secrets = fetch(specs, self._environ, _settle(folder, specs))
        copies = _find_copies(self._environ if given is None else decoded(given), self.secrets)
        own_copies = copies if given is None else _find_copies(self._environ, self.secrets)
        dropped = {*variables_to_drop(specs), *copies, *own_copies}
        if specs:
            scrub_environment(dropped, given)
        placeholders = tuple((each.name, each.placeholder.decode("ascii")) for each in self.secrets)
        said = (*_announce(self._loaded.policy, specs), *copies.values())
        send(control, Fetched(placeholders, tuple(sorted(dropped)), said))

    def load(self) -> None:
        """Everything that is needed later, while the jail is being built."""
        load_codings()
        self._trust.context(HTTP1)  # 25 ms; the others when they are needed

    def interception(self) -> Interception:
        """What the gateway works with."""
        mode = Intercept(self._loaded.intercept)
        return Interception(mode, Vault(self.secrets), Contexts(self._authority), self._trust.context)

    def start_renewals(self, journal: Log) -> None:
        """Secrets that do not last are fetched again in the background, and requests take the new value."""
        self._renewals = Renewals(self.secrets, self._environ, journal)

    def end_renewals(self) -> None:
        """Nothing waits for them any more, nor for the commands that they have started."""
        if self._renewals is not None:
            self._renewals.end()
        end_commands()


def _settle(folder: SandboxFolder | None, secrets: Sequence[SecretSpec]) -> Settle | None:
    if folder is None:
        return None
    from exeat.sandbox.placeholders import KeptPlaceholders  # for sandboxes with a name

    return KeptPlaceholders(folder, {each.name: each.shape for each in secrets if not each.placeholder}).settle


def permitted_hosts(policy: Policy, secrets: Sequence[SecretSpec], intercept: str) -> list[Pattern]:
    """The hosts that certificates are made for, as narrow as the rules allow to say it."""
    allowing = [rule for rule in policy.rules if not rule.deny and not rule.no_intercept]
    denies_requests = any(rule.deny and rule.conditional for rule in policy.rules)
    if intercept == Intercept.ALL or denies_requests:
        return [rule.pattern for rule in allowing]
    wanted = [rule.pattern for rule in allowing if rule.conditional]
    return wanted + [rule.pattern for secret in secrets for rule in secret.hosts]


def _files_with_values(secrets: Sequence[SecretSpec]) -> tuple[str, ...]:
    """Those that secrets name, and those in which values are written; links followed."""
    written = (each.written.name for each in secrets if each.source.value is not None and each.written.name != VARIABLE)
    return tuple(dict.fromkeys((*files_to_hide(secrets), *map(os.path.realpath, written))))


def _find_copies(environ: Mapping[str, str], secrets: Sequence[Secret]) -> dict[str, str]:
    """Other variables that have a value in them, and what to say of each: a token often has more than one name."""
    known = {*variables_to_drop([each.spec for each in secrets]), *(each.name for each in secrets)}
    found = {}
    for variable, text in environ.items():
        data = os.fsencode(text)
        for secret in secrets:
            value = secret.value
            same = len(value) >= _WHOLE and value == data
            if (same or (len(value) >= _PART and value in data)) and variable not in known:
                found[variable] = f"{variable} is not passed on: it has the value of {secret.name} in it"
    return found


def _announce(policy: Policy, secrets: Sequence[SecretSpec]) -> list[str]:
    """One line for each secret: where it may go, and whether that is allowed by its being there alone."""
    lines = []
    for secret in secrets:
        notes = [_note(policy, rule) for rule in secret.hosts]
        hosts = ", ".join(f"{rule.text}{note}" for rule, note in zip(secret.hosts, notes, strict=True))
        lines.append(f"{secret.name} is a placeholder; its value goes only to {hosts}")
    return lines


def _note(policy: Policy, rule: Rule) -> str:
    """What the rules that someone wrote make of one host of a secret. Of many hosts at once nothing can be said."""
    pattern = rule.pattern
    if pattern.scope is not Scope.EXACT:
        return " (allowed by the secret, unless another rule applies)"
    host, port = Name(pattern.name), rule.ports[0][0]
    if is_exempt(policy, host, port):
        return " (but a rule says no-intercept, so the server gets the placeholder)"
    decision = decide(policy, Target(host, port))
    if not decision.allowed and decision.reason is not Reason.NEEDS_INTERCEPTION:
        return " (but a rule denies it)"
    return " (allowed by the secret)" if decision.rule is not None and decision.rule.implied else ""
