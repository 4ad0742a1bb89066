"""The list of a kept sandbox as part of a policy."""

from __future__ import annotations

from pathlib import Path

from exeat.run.gateway_process.stored import StoredRules
from exeat.sandbox.folder import SandboxFolder
from exeat.sources import make_policy


def test_what_the_command_was_started_with_stays_beside_the_list(folder: SandboxFolder) -> None:
    """Its rules, the addresses given for names, and the networks that names may lead to."""
    Path(folder.allowlist_path).write_text("listed.test\n")
    own = make_policy(["own.test"], hosts={"a.test": "127.0.0.1"}, private_networks=["10.1.0.0/16"])
    policy = StoredRules(folder, own).policy
    assert [rule.text for rule in policy.rules] == ["listed.test", "own.test"]
    assert policy.hosts == own.hosts
    assert policy.private_networks == own.private_networks
