"""`git http-backend` behind a web server: repositories that real git clones from and pushes to."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from email import message_from_bytes
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.web import App, Reply, Request


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
