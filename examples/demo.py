"""What `make demo` shows: an agent in a jail, what it may reach, a key that it uses and never holds, and ways out."""

from __future__ import annotations

import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import trustme

GOOD, KEYED = "api.good.test", "keyed.good.test"
KEY = "sk-live-4a9f2c7e1b8d6035"  # opens nothing; it stands for one that does
AGENT = Path(__file__).with_name("agent.py")


class Echo(http.server.BaseHTTPRequestHandler):
    """Stands for any server on the internet. It sends back the Authorization that it was sent, as debug pages do."""

    seen: list[str] = []  # noqa: RUF012 - shared by all requests on purpose

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "")
        self.seen.append(authorization)
        body = f"you sent: {authorization}\n" if authorization else "hello\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name for it
        """Says nothing: the table is what is to be seen."""


def serve(tls: ssl.SSLContext | None = None) -> int:
    """Start a server on loopback and give its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def run_agent(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Run the agent as anybody would. Gives all that it and exeat have printed, and the audit log."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(KEYED).configure_cert(tls)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    port, tls_port = serve(), serve(tls)
    secret = {"env": "API_KEY", "hosts": [f"{KEYED}:{tls_port}"], "shape": "sk-"}
    (folder / "secrets.json").write_text(json.dumps({"API_KEY": secret}))
    options = ["--allow", f"{GOOD}:{port}", "--secrets", "secrets.json", "--upstream-ca", "ca.pem"]
    shown = " ".join(options)
    options += ["--add-host", f"{GOOD}:127.0.0.1", "--add-host", f"{KEYED}:127.0.0.1", "--audit", "audit.jsonl"]
    print(f"secrets.json: {json.dumps({'API_KEY': secret})}\nexeat run {shown} -- python agent.py\n", flush=True)
    program = [sys.executable, str(AGENT), str(port), str(tls_port), str(os.getpid())]
    printed = ""
    with subprocess.Popen(
        [sys.executable, "-m", "exeat", "run", *options, "--", *program],
        cwd=folder, env=os.environ | {"API_KEY": KEY}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            print(line, end="", flush=True)
            printed += line
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return printed, [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def show(title: str, rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def as_row(event: dict[str, Any]) -> tuple[str, ...]:
    where = f"{event['host']}:{event['port']}" if event["host"] else "(unreadable)"
    secrets = ",".join(event["secrets"]) or "-"
    return event["verdict"], event["protocol"], event["method"] or "-", where, event["reason"], secrets


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        printed, events = run_agent(Path(folder))
    decided = [as_row(event) for event in events if event["event"] == "decision"]
    titles = ("verdict", "protocol", "method", "host", "reason", "secret")
    show("Every decision, from the audit log", [titles, *decided])
    at_service = [each for each in Echo.seen if each]
    at_agent = re.findall(r"you sent: (.*)", printed)
    print(f"\nThe service saw  {', '.join(at_service).replace(KEY, f'{KEY[:8]}...{KEY[-4:]}')}  (the key; masked here)")
    print(f"The agent saw    {', '.join(at_agent)}  (good for nothing)")
    allowed = {row[3].partition(":")[0] for row in decided if row[0] == "allow"}
    denied = sum(row[0] == "deny" for row in decided)
    print(f"{len(decided) - denied} allowed, {denied} denied, every one on record.")
    refused = any(row[4:] == ("secret-to-wrong-host", "API_KEY") for row in decided)
    used = at_service == [f"Bearer {KEY}"] and len(at_agent) == 1
    if not used or KEY in printed or not refused or allowed != {GOOD, KEYED}:
        raise SystemExit("the demo did not go as it should: please report this")


if __name__ == "__main__":
    main()
