"""`python -m bench.exeat_intercept PORT AUDIT [SECRETS]`: a gateway that looks into TLS, with one secret or so many.

`exeat run --secrets` has the same gateway, but in its jail; the others are measured over loopback, so this one is too.
"""

import asyncio
import json
import os
import random
import signal
import sys
from string import ascii_letters, digits

from bench.guarded import HOST, PLACEHOLDER, PORT, VALUE, authority_path
from exeat.gateway.gateway import Gateway
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.gateway.tls.interception import Intercept, Interception
from exeat.policy import build_policy
from exeat.secrets.setup.config import parse_secrets
from exeat.secrets.setup.values import fetch
from exeat.secrets.vault import Vault
from exeat.trust.authority import Authority, Contexts
from exeat.trust.roots import UpstreamTrust

SECRET: dict[str, object] = {
    "value": VALUE,
    "placeholder": PLACEHOLDER,
    "hosts": [f"{HOST}:{PORT} private"],
    "where": ["headers", "basic", "query", "body"],
}


def make_secrets(count: int) -> dict[str, dict[str, object]]:
    """The one that is used, and others as long for the same host."""
    source = random.Random(2)
    others: dict[str, dict[str, object]] = {}
    for number in range(1, count):
        value = "".join(source.choices(ascii_letters + digits, k=len(VALUE)))
        others[f"OTHER_{number}"] = {**SECRET, "value": value, "placeholder": f"{PLACEHOLDER[:-10]}{number:010}"}
    return {"BENCH": SECRET, **others}


def make_gateway(port: int, audit: str, secrets: int) -> Gateway:
    """The one place where the gateway is put together, as `exeat run` does it."""
    specs = parse_secrets(json.dumps(make_secrets(secrets)), "secrets.json")
    rules = [rule for spec in specs for rule in spec.hosts]
    authority = Authority([rule.pattern for rule in rules])
    trust = UpstreamTrust([str(authority_path())], os.environ)
    vault = Vault(fetch(specs, os.environ))
    for secret in vault.secrets:
        vault.note_injected(secret)  # as if each had been used before: all are looked for
    interception = Interception(Intercept.NEEDED, vault, Contexts(authority), trust.context)
    return Gateway(build_policy(rules), port=port, audit=audit, interception=interception)


async def serve(port: int, audit: str, secrets: int) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with make_gateway(port, audit, secrets):
        await stopped.wait()
    return 0


if __name__ == "__main__":
    raise_descriptor_limit()
    sys.exit(run_in_loop(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)))
