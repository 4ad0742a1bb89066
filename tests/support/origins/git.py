"""Repositories that real git clones from and pushes to, and `git http-backend` behind a web server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from email import message_from_bytes
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.origins.web import App, Reply, Request
from tests.support.programs import run

FIRST_FILE = "the first file\n"


def git_environment(env: Mapping[str, str]) -> dict[str, str]:
    """git without the machine's settings, asking no one anything, with an author."""
    return {
        **env,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Somebody",
        "GIT_AUTHOR_EMAIL": "somebody@good.test",
        "GIT_COMMITTER_NAME": "Somebody",
        "GIT_COMMITTER_EMAIL": "somebody@good.test",
    }


def git(env: Mapping[str, str], *arguments: str, cwd: Path | None = None) -> str:
    """Run git where no network is involved."""
    done = run(["git", *arguments], env, cwd=cwd)
    assert done.status == 0, done
    return done.stdout.strip()


def make_repository(repository: Path, env: Mapping[str, str], first: Path) -> None:
    """A bare repository with one commit of a file README, written in the folder `first`."""
    git(env, "init", "--quiet", "--bare", "--initial-branch=main", str(repository))
    git(env, "init", "--quiet", "--initial-branch=main", str(first))
    (first / "README").write_text(FIRST_FILE)
    git(env, "add", "README", cwd=first)
    git(env, "commit", "--quiet", "--message=first", cwd=first)
    git(env, "push", "--quiet", str(repository), "main", cwd=first)


def git_backend(root: Path, env: Mapping[str, str]) -> App:
    """Serve the repositories below `root`, by CGI (RFC 3875)."""

    def answer(request: Request) -> Reply:
        url = urlsplit(request.target)
        variables = {
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GATEWAY_INTERFACE": "CGI/1.1",
            "SERVER_PROTOCOL": request.version,
            "REQUEST_METHOD": request.method,
            "PATH_INFO": unquote(url.path),
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": request.headers["Content-Type"] or "",
            "CONTENT_LENGTH": str(len(request.body)),
            "REMOTE_ADDR": "127.0.0.1",
            "REMOTE_USER": "somebody",  # without one, http-backend does not take a push
        }
        for header, variable in (("Content-Encoding", "HTTP_CONTENT_ENCODING"), ("Git-Protocol", "GIT_PROTOCOL")):
            if request.headers[header]:
                variables[variable] = request.headers[header]
        done = subprocess.run(
            ["git", "http-backend"],
            input=request.body,
            env={**env, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
        return _parse(done.stdout)

    return answer


def _parse(output: bytes) -> Reply:
    """A CGI response: headers, among them perhaps Status, and the body."""
    head, _, body = output.partition(b"\r\n\r\n")
    headers = dict(message_from_bytes(head + b"\r\n\r\n").items())
    status = int(headers.pop("Status", "200 OK").split()[0]) if head else 500
    return Reply(body, status, headers)
