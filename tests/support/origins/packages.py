"""A package index of our own, with one package, and how to have pip use it and nothing else."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.origins.web import App, Reply, Request

WHEEL = "tiny-1.0-py3-none-any.whl"


def build_wheel() -> bytes:
    """The smallest wheel that pip installs: one module and its papers."""
    files = {
        "tiny.py": "GREETING = 'hello'\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    files["tiny-1.0.dist-info/RECORD"] = f"{record}tiny-1.0.dist-info/RECORD,,\n"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def index(files_host: str = "") -> App:
    """A package index whose links lead to the same server, under another name if one is given."""
    wheel = build_wheel()

    def answer(request: Request) -> Reply:
        if request.target == f"/files/{WHEEL}":
            return Reply(wheel, headers={"Content-Type": "application/octet-stream"})
        if request.target != "/simple/tiny/":
            return Reply(status=404)
        port = request.headers["Host"].partition(":")[2]
        start = f"https://{files_host}:{port}" if files_host else ""
        link = f'<a href="{start}/files/{WHEEL}#sha256={hashlib.sha256(wheel).hexdigest()}">{WHEEL}</a>'
        return Reply(f"<!doctype html><title>tiny</title>{link}".encode(), headers={"Content-Type": "text/html"})

    return answer


def pip_environment(env: Mapping[str, str], ca: Path) -> dict[str, str]:
    """No configuration file, no cache, no question about a newer pip."""
    return {
        **env,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_CERT": str(ca),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }


def install(index_host: str, target: Path) -> list[str]:
    """pip repeats what failed, five times unless told otherwise; each would be a denial of its own."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "0"]
    return [*command, "--index-url", f"{index_host}/simple/", "--target", str(target), "tiny"]
