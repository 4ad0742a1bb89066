"""What `make demo` shows: an agent is allowed, is denied, uses a key that it never holds, and does not get out."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import trustme

ALLOWED, KEYED = "docs.test", "api.test"
KEY = "sk-live-4a9f2c7e1b8d6035"  # opens nothing; it stands for one that does
AGENT = Path(__file__).with_name("agent.py")
BASHRC = "# yours\n"


class Echo(http.server.BaseHTTPRequestHandler):
    """Stands for any server on the internet. It sends back the key that it was sent, as debug pages do."""

    seen: list[str] = []  # noqa: RUF012 - shared by all requests on purpose

    def do_GET(self) -> None:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen.append(key)
        body = f"your key: {key}\n" if key else "hello\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name for it
        """Says nothing: what the agent prints is the demo."""


def serve(port: int, tls: ssl.SSLContext | None = None) -> int:
    """Start a server on loopback and return its port: this one, or any if it is taken."""
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Echo)
    except OSError:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def furnish(home: Path) -> Path:
    """A home directory with a key and a shell's settings in it, and a project, which is returned."""
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (home / ".bashrc").write_text(BASHRC)
    project = home / "project"
    project.mkdir()
    return project


def run_agent(home: Path, image: str = "") -> tuple[str, list[dict[str, Any]]]:
    """Run the agent as anyone would, perhaps in a container. Returns all that it and exeat printed, and the log."""
    project = furnish(home)
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(KEYED).configure_cert(tls)
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    port, tls_port = serve(8080), serve(8443, tls)
    (project / "secrets.toml").write_text(
        f'[API_KEY]\nenv = "API_KEY"\nhosts = ["{KEYED}:{tls_port}"]\nshape = "sk-"\n'
    )
    options = ["--allow", f"{ALLOWED}:{port}", "--secrets", "secrets.toml", "--audit", "log", "--quiet"]
    options += ["--container", image] if image else []
    print("$ exeat run", *options, "-- python agent.py", flush=True)
    environ = os.environ | {
        "HOME": str(home),
        "API_KEY": KEY,
        # In place of DNS and of the system's roots: both servers are on this machine.
        "EXEAT_ADD_HOSTS": f"{ALLOWED}:127.0.0.1,{KEYED}:127.0.0.1",
        "SSL_CERT_FILE": str(home / "ca.pem"),
    }
    python, agent = sys.executable, str(AGENT)
    if image:
        python, agent = "python3", shutil.copy(AGENT, str(project))
    program = [python, agent, str(port), str(tls_port), str(os.getpid())]
    printed = ""
    with subprocess.Popen(
        [sys.executable, "-m", "exeat", "run", *options, "--", *program],
        cwd=project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            print(line, end="", flush=True)
            printed += line
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    subprocess.run(
        [sys.executable, "-m", "exeat", "audit", "verify", "log"], cwd=project, check=True, capture_output=True
    )
    return printed, [json.loads(line) for line in (project / "log").read_text().splitlines()]


def show(image: str = "") -> None:
    """All of it, and whether it went as it should."""
    with tempfile.TemporaryDirectory() as folder:
        printed, events = run_agent(Path(folder), image)
        bashrc = Path(folder, ".bashrc").read_text()
    decided = [event for event in events if event["event"] == "decision"]
    allowed = {event["host"] for event in decided if event["verdict"] == "allow"}
    refused = any((event["reason"], event["secrets"]) == ("secret-to-wrong-host", ["API_KEY"]) for event in decided)
    at_service = [key for key in Echo.seen if key]
    at_agent = re.findall(r"your key: (.*)", printed)
    print(f"""
What the API received:  {", ".join(at_service).replace(KEY, f"{KEY[:8]}...{KEY[-4:]}")}  (the key; masked here)
What the agent had:     {", ".join(at_agent)}  (worth nothing)
~/.bashrc, outside:     {"unchanged" if bashrc == BASHRC else "CHANGED"}
Hosts that it reached:  {", ".join(sorted(allowed))}  (each decision is in the log)""")
    as_said = (
        at_service == [KEY] and len(at_agent) == 1 and KEY not in printed and refused and bashrc == BASHRC
        and allowed == {ALLOWED, KEYED} and "bytes" not in printed
    )  # fmt: skip
    if not as_said:
        raise SystemExit("the demo did not go as it should: please report this")


if __name__ == "__main__":
    show()
