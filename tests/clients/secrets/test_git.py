"""git that writes: what it uploads goes unchanged past the gateway, with the password put in."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.clients.secrets.clients import USER
from tests.clients.secrets.scene import Ward, leaks
from tests.clients.secrets.servers import DOMAIN, REPOSITORY, VALUE, Upstream
from tests.support.origins.git import git, git_environment
from tests.support.programs import need

# Chunks over HTTP/2 are left out: git 2.39 with libcurl 7.88, Debian 12's, now and then waits for itself there. It
# does so with other servers too, without any gateway.
WAYS = {
    "chunked": ([], "http.version=HTTP/1.1", "chunked", "connect/https"),
    "http2": (["--no-proxy-env"], "http.postBuffer=8000000", None, "redirect/h2"),
}


@pytest.mark.parametrize("way", WAYS)
def test_push(ward: Ward, upstream: Upstream, way: str) -> None:
    """2 MB, more than git sends with a length unless it is told to, by a helper that has the credential."""
    need("git")
    options, setting, coding, protocol = WAYS[way]
    place, branch = f"{DOMAIN}:{upstream.web.port}", way
    (ward.folder / "large").write_bytes(os.urandom(2_000_000))
    store = "!f() { echo username=%s; echo password=$API_KEY; }; f" % USER  # noqa: UP031 - braces are the shell's
    steps = [
        ["git", "config", "--global", "credential.helper", store],
        ["git", "clone", "--quiet", f"https://{place}/{REPOSITORY}", "clone"],
        ["mv", "large", "clone/large"],
        ["git", "-C", "clone", "add", "large"],
        ["git", "-C", "clone", "commit", "--quiet", "--message=large"],
        ["git", "-C", "clone", "-c", setting, "push", "--quiet", "origin", f"HEAD:{branch}"],
    ]
    upstream.forget()
    done = ward.run(["sh", "-ec", "\n".join(map(shlex.join, steps))], *options, env=git_environment({}))
    assert done.status == 0, done
    assert not leaks(done.stdout + done.stderr)
    assert {what for _, what in upstream.shown()} == {f"{USER}:{VALUE}"}
    assert upstream.web.requests[-1].headers["Transfer-Encoding"] == coding
    assert len(upstream.web.requests[-1].body) > 2_000_000
    protocols = [each["protocol"] for each in ward.decisions()]
    assert protocol in protocols
    assert protocols[-1].endswith("/https")  # by then it is known that the server does not speak HTTP/2
    local, clone = git_environment(ward.env), ward.folder / "clone"
    arrived = git(local, "rev-parse", f"{branch}:large", cwd=upstream.repository)
    git(local, "branch", "--quiet", "-D", branch, cwd=upstream.repository)  # others clone it too
    assert arrived == git(local, "hash-object", "large", cwd=clone)
