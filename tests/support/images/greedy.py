"""A base image with all that must not be in a sandbox, and packages to install in one."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from exeat.engine.client import Engine

GREEDY = "localhost/exeat-test-greedy:1"
PROGRAMS = ("wget", "nc", "ncat", "gcc", "gcc-12", "cc", "make", "git", "ssh", "scp", "apt-get", "busybox")
_ADD = f"""
import os, shutil
for name in {PROGRAMS!r}:
    shutil.copy("/bin/true", "/usr/local/bin/" + name)
shutil.copy("/bin/true", "/opt/raw")
os.setxattr("/opt/raw", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
shutil.copy("/bin/true", "/opt/as-root")
os.chmod("/opt/as-root", 0o6755)
os.makedirs("/root/.cache/pip", exist_ok=True)
open("/root/.cache/pip/x", "w").close()
open("/etc/exeat-of-base", "w").close()
"""


def make_greedy(engine: Engine, base: str) -> str:
    """Built by the engine, from the image of the tests. Its user is not root, and its PATH is its own."""
    variables = "PATH=/opt/own:/usr/bin:/bin MARK=of-base"
    dockerfile = f"FROM {base}\nCOPY add.py /add.py\nRUN python3 /add.py\nENV {variables}\nUSER 33\n"
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for name, text in (("Dockerfile", dockerfile), ("add.py", _ADD)):
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        context = whole.getvalue()
    query = {"t": GREEDY, "networkmode": "none", "rm": True}
    headers = {"Content-Type": "application/x-tar"}
    for line in engine.stream("POST", "/build", query=query, data=context, headers=headers):
        assert "error" not in line, line
    return GREEDY


def make_wheel(folder: Path, name: str, version: str, module: str) -> str:
    """A package of one module. Returns the requirement for it, with its hash."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**files, f"{info}/RECORD": f"{listed}{info}/RECORD,,\n"}.items():
            archive.writestr(inside, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
