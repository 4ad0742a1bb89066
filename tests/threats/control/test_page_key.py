"""Another user of the machine and `exeat ui --open`: what stands in the list of processes must not be a key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.runs.running import AS_ROOT, NOBODY, TIMEOUT_S, as_user, environment, folder_of, python

pytestmark = pytest.mark.threat("T-P4")

# Takes the link that a browser was started with, and asks for the token before the browser does. A link to a file
# is followed, as a browser would.
THIEF = r"""
import json, re, socket, sys, urllib.parse
link = sys.argv[1]
if link.startswith("file:"):
    link = open(urllib.parse.unquote(urllib.parse.urlsplit(link).path)).read()
found = re.search(r"http://(127\.0\.0\.1:(\d+))/#open=([\w-]+)", link)
body = json.dumps({"ticket": found[3]})
with socket.create_connection(("127.0.0.1", int(found[2])), 10) as peer:
    head = f"POST /api/open HTTP/1.1\r\nHost: {found[1]}\r\nContent-Type: application/json"
    peer.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    answer = peer.makefile("rb").read()
print(json.loads(answer.partition(b"\r\n\r\n")[2])["token"])
"""


@AS_ROOT
@pytest.mark.parametrize(("uid", "is_let_in"), [(None, True), (NOBODY, False)], ids=["the same user", "another user"])
def test_who_reads_the_list_of_processes_is_not_let_in(uid: int | None, is_let_in: bool) -> None:
    """Another user polls the list, sees the link, and is quicker than a browser that has yet to start.

    With the token all sandboxes can be changed. That the link was used twice shows only when the browser comes, which
    32 open connections keep away.
    """
    with folder_of(None) as folder:
        browser = folder / "browser"
        browser.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {folder}/link.new && mv {folder}/link.new {folder}/link\n')
        browser.chmod(0o755)
        argv = [sys.executable, "-m", "exeat", "ui", "--open"]
        given = environment(EXEAT_HOME=str(folder / "home"), BROWSER=f"{browser} %s")
        with subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            try:
                wait_until((folder / "link").exists, "a link was opened")
                link = Path(folder / "link").read_text()
                thief = subprocess.run(
                    [*as_user(uid), *python(THIEF, link)],
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            finally:
                child.kill()
            out = child.communicate()[0]
    token = thief.stdout.strip()
    assert (bool(token) and f"/#{token}" in out) == is_let_in, thief
