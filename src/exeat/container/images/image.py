"""The images of a sandbox as data: what goes into a build, and the checksum that names the result.

There are two. The *hardened* one has the base image's files, without what must not stay, and the packages: it takes
long to build and is shared by all sandboxes with the same base and packages. The *sandbox* one adds the harness and the
tools: a changed tool costs a second. Both are built in stages, so that what a stage takes away is in no layer.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final, NamedTuple

from exeat.container.harness.shipped import read_harness
from exeat.container.images.package_index import HERE, PackageIndex, find_pip
from exeat.container.registry import Tool
from exeat.engine.owner import KIND, OWNER, labels
from exeat.jail.container.images import Image

FORMAT: Final = 1  # counts with the layout of the images
BUILD: Final = "exeat.build"
ENTRYPOINT: Final = ("python3", "-I", "-B", "/exeat/harness.py")
_USUAL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """An image to be built, if it is not there under its tag."""

    tag: str
    dockerfile: str
    files: Mapping[str, bytes] = field(repr=False)
    needs_network: bool = False

    def context(self) -> bytes:
        """As the tar that an engine takes: the same bytes for the same files."""
        with io.BytesIO() as whole:
            with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name, content in sorted({"Dockerfile": self.dockerfile.encode(), **self.files}.items()):
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mode = len(content), 0o644
                    archive.addfile(entry, io.BytesIO(content))
            return whole.getvalue()


class Built(NamedTuple):
    """An image that is there. Its digest depends on the engine and the time; its tag does not."""

    tag: str
    digest: str


def hardened_tag(base: Image, requirements: Sequence[str]) -> str:
    """By what is in it. Where packages come from does not matter."""
    prepare = _step("prepare.py").decode()
    return f"exeat-hardened:{_checksum(FORMAT, 'hardened', base.id, list(requirements), prepare, _ENV_RULE)}"


def hardened_order(base: Image, requirements: Sequence[str], index: PackageIndex, build: str) -> BuildOrder:
    """`build` marks what is between the steps of this build, so that it can be removed."""
    checksum = hardened_tag(base, requirements).rpartition(":")[2]
    has_hashes = any("--hash=" in each for each in requirements)
    settings = {
        "requirements": list(requirements),
        "has_hashes": has_hashes,
        "environment": dict(index.environment) if requirements else {},
    }
    sent = {"prepare.py": _step("prepare.py"), "settings.json": json.dumps(settings).encode()}
    if requirements:
        sent |= index.files
        sent |= {"pip.whl": pip} if (pip := find_pip()) else {}
    dockerfile = f"""\
FROM {_by_digest(base.id)} AS prepared
{_marked(build)}
{"USER 0:0" if base.user else ""}
COPY exeat-build {HERE}
RUN ["python3", "-I", "-B", "{HERE}/prepare.py"]

FROM scratch
{_marked(build)}
COPY --from=prepared / /
{_carried_over(base)}
USER sandbox
WORKDIR /home/sandbox
{_finished({"exeat.base": base.name, "exeat.checksum": checksum})}
"""
    from_outside = index.needs_network or any("@" in each for each in requirements)
    return BuildOrder(
        tag=hardened_tag(base, requirements),
        dockerfile=dockerfile,
        files={f"{HERE[1:]}/{name}": content for name, content in sent.items()},
        needs_network=bool(requirements) and from_outside,
    )


def sandbox_order(name: str, hardened: Built, tools: Sequence[Tool], build: str) -> BuildOrder:
    """The harness and the tools on top of the hardened image."""
    harness = read_harness()
    check = _step("check_tools.py")
    sources = {f"{tool.name}.py": tool.source for tool in tools}
    manifest = {
        "version": 1,
        "tools": {
            tool.name: {"file": f"{tool.name}.py", "function": tool.name, "is_async": tool.is_async} for tool in tools
        },
    }
    checksum = _checksum(FORMAT, "sandbox", hardened.tag, manifest, sources, harness.decode(), check.decode())
    dockerfile = f"""\
FROM {_by_digest(hardened.digest)} AS checked
{_marked(build)}
COPY exeat /exeat
COPY check_tools.py {HERE}/check_tools.py
RUN ["python3", "-I", "-B", "{HERE}/check_tools.py"]

FROM {_by_digest(hardened.digest)}
{_marked(build)}
COPY --from=checked /exeat /exeat
ENTRYPOINT {json.dumps(ENTRYPOINT)}
{_finished({"exeat.sandbox": name, "exeat.checksum": checksum})}
"""
    sent = {f"exeat/tools/{file}": source.encode() for file, source in sources.items()}
    sent |= {"exeat/tools/manifest.json": json.dumps(manifest, sort_keys=True).encode()}
    return BuildOrder(
        tag=f"exeat-sandbox-{name}:{checksum}",
        dockerfile=dockerfile,
        files={**sent, "exeat/harness.py": harness, "check_tools.py": check},
    )


def _by_digest(digest: str) -> str:
    """A tag may be moved between the look at an image and the build; both engines take this form."""
    return digest.removeprefix("sha256:")


def _step(name: str) -> bytes:
    return files("exeat.container.images.steps").joinpath(name).read_bytes()


def _checksum(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _marked(build: str) -> str:
    """First in each stage: whatever comes of it until the end belongs to this process, and goes with it."""
    return _label({**labels("build"), BUILD: build})


def _finished(more: Mapping[str, str]) -> str:
    """Last: it stays."""
    return _label({KIND: "image", OWNER: "", BUILD: "", **more})


def _label(values: Mapping[str, str]) -> str:
    return "LABEL " + " ".join(f"{name}={_quoted(value)}" for name, value in values.items())


_ENV_RULE: Final = 1  # counts with what is carried over


def _carried_over(base: Image) -> str:
    """The base image's variables: Python may be in a PATH of its own. Not those of pip, which may hold passwords."""
    kept = {
        name: value
        for name, value in {"PATH": _USUAL_PATH, **base.variables}.items()
        if name.isidentifier() and not name.startswith("PIP_") and value.isprintable()
    }
    return "ENV " + " ".join(f"{name}={_quoted(value)}" for name, value in kept.items())


def _quoted(text: str) -> str:
    """As a Dockerfile reads it back."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
