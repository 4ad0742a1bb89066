"""git that writes: what it uploads goes unchanged past the gateway, with the password put in."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.clients.secrets.clients import USER
from tests.clients.secrets.scene import Ward, leaks
from tests.clients.secrets.servers import DOMAIN, REPOSITORY, VALUE, Upstream
from tests.support.git_backend import git, git_environment
from tests.support.programs import need


@pytest.mark.parametrize("options", [[], ["--no-proxy-env"]], ids=["proxy", "no-proxy"])
def test_push(ward: Ward, upstream: Upstream, options: list[str]) -> None:
    """2 MB, more than git sends with a length, by the credential that git has stored; all of it is there then."""
    need("git")
    place, branch = f"{DOMAIN}:{upstream.web.port}", "without" if options else "with"
    (ward.folder / "large").write_bytes(os.urandom(2_000_000))
    store = "!f() { echo username=%s; echo password=$API_KEY; }; f" % USER  # noqa: UP031 - braces are the shell's
    steps = [
        ["git", "config", "--global", "credential.helper", store],
        ["git", "clone", "--quiet", f"https://{place}/{REPOSITORY}", "clone"],
        ["mv", "large", "clone/large"],
        ["git", "-C", "clone", "add", "large"],
        ["git", "-C", "clone", "commit", "--quiet", "--message=large"],
        ["git", "-C", "clone", "push", "--quiet", "origin", f"HEAD:{branch}"],
    ]
    upstream.forget()
    done = ward.run(["sh", "-ec", "\n".join(map(shlex.join, steps))], *options, env=git_environment({}))
    assert done.status == 0, done
    assert not leaks(done.stdout + done.stderr)
    assert {what for _, what in upstream.shown()} == {f"{USER}:{VALUE}"}
    assert any(each.headers["Transfer-Encoding"] == "chunked" for each in upstream.web.requests)
    local, clone = git_environment(ward.env), ward.folder / "clone"
    arrived = git(local, "rev-parse", f"{branch}:large", cwd=upstream.repository)
    git(local, "branch", "--quiet", "-D", branch, cwd=upstream.repository)  # others clone it too
    assert arrived == git(local, "hash-object", "large", cwd=clone)
