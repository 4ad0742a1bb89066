"""Secrets, rules and placeholders that are sent somewhere."""

from __future__ import annotations

from typing import Any

from tests.support.gateways.intercepted import VALUE, Intercepted, StartIntercepted
from tests.support.origins.raw import receive_body

REAL = VALUE.encode()
ALL = ["headers", "basic", "query", "path", "body"]
SECRETS: dict[str, dict[str, Any]] = {
    "KEY": {"hosts": ["good.test private"], "where": ALL},
    "SPARE": {"hosts": ["spare.wild.test private"], "value": "the value of the spare one", "where": ALL},
}
RULES = [
    "other.test private methods=GET|POST", "good.test:80 private", "other.test:80 private",
    "good.test:8443 private methods=GET|POST", "other.test:5432 private", "good.test:5432 private",
]  # fmt: skip


def start(start_intercepted: StartIntercepted, **settings: Any) -> Intercepted:
    given = {"secrets": SECRETS, "handler": receive_body, "plain_handler": receive_body, **settings}
    scene = start_intercepted(RULES, **given)
    scene.dials.ports |= {8443: scene.origin.port, 5432: scene.plain.port}
    return scene
