"""No cache of the whole process holds a value: gateways share nothing, and what a run knew is gone with it."""

from __future__ import annotations

import pytest

from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.vault import Vault
from tests.unit.secrets.samples import make_secret

pytestmark = pytest.mark.threat("T-H6")

VALUE = b"value-of-one-gateway-only-0123456789"
HEX = VALUE.hex().encode()


def form_in_a_vault() -> bytes:
    """The very object with which a vault of its own looks for the value's hex form."""
    secret = make_secret(value=VALUE)
    vault = Vault([secret])
    vault.note_injected(secret)
    redaction = vault.redaction()
    assert redaction is not None
    assert redaction.clean(HEX) == secret.placeholder, "the control: it is looked for"
    return next(form for form in redaction.table.pairs if form == HEX)


def test_two_vaults_share_no_form_of_a_value() -> None:
    assert form_in_a_vault() is not form_in_a_vault()


def test_the_forms_of_a_value_are_made_once_in_a_vault(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take milliseconds for a long value, and another value may be given out at any time."""
    made: list[bytes] = []

    def make(value: bytes) -> tuple[bytes, ...]:
        made.append(value)
        return reflected_forms(value)

    monkeypatch.setattr("exeat.secrets.response.redaction.reflected_forms", make)
    first, second = make_secret(value=VALUE), make_secret("OTHER", value=b"another-value-0123456789")
    vault = Vault([first, second])
    vault.note_injected(first)
    vault.redaction()
    vault.note_injected(second)
    vault.redaction()
    second.renew(b"a-third-value-0123456789")
    vault.redaction()
    assert made == [VALUE, b"another-value-0123456789", b"a-third-value-0123456789"]
