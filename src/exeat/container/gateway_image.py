"""The gateway as an image, made of the exeat that runs here. It is built only when it is missing.

It is the sidecar (`exeat serve`), and the image of the short-lived containers that exeat needs for itself: exeat can be
imported by the base's own Python, in isolated mode, whatever the base has installed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import MAGIC_NUMBER
from typing import Any, Final

from exeat.container.engine_lock import held
from exeat.container.gateway_setup import REFUSED
from exeat.container.installed import Installed, InstalledFile, as_tar, compiled_modules
from exeat.engine.client import Engine
from exeat.engine.errors import BuildError, EngineError, NotFoundError
from exeat.engine.owner import KIND, OWNER, labels
from exeat.errors import ConfigError
from exeat.jail.container.images import find_image

BASE_VARIABLE: Final = "EXEAT_GATEWAY_BASE"
NAME: Final = "exeat-gateway"
PORT: Final = 8888
ADMIN: Final = "127.0.0.1:8889"  # for the health check, which runs inside
USER: Final = 65532  # no user of the base, and no name is needed for it
BUILD: Final = "exeat.build"  # which build made an image between its steps
_FOLDER: Final = "/opt/exeat"
_BUILD_S: Final = 600.0  # how long another process may take that builds it
DATA: Final = "/var/lib/exeat"  # for a volume: what is to outlive the container
_DOCKERFILE: Final = """\
FROM {base}
LABEL {ours}
USER 0:0
COPY exeat {folder}
RUN ["python3", "-I", "-B", "{setup}", "{folder}", "{abi}", "{magic}", "{data}", "{user}"]
USER {user}:{user}
RUN ["python3", "-I", "-B", "-c", "import {modules}"]
WORKDIR /
ENV PROXY_PORT={port} EXEAT_BIND=0.0.0.0 EXEAT_ADMIN={admin}
EXPOSE {port}
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["python3", "-I", "-m", "exeat.serve.health"]
ENTRYPOINT ["python3", "-I", "-m", "exeat"]
CMD ["serve"]
LABEL {kept}
"""

Progress = Callable[[str], None]


def ensure_gateway_image(engine: Engine, base: str = "", progress: Progress | None = None) -> str:
    """The image's name, with a tag over all that is in it. Raises ConfigError, EngineError or BuildError."""
    base = base or default_base()
    installed = Installed()
    base_id = _ensure_base(engine, base, progress)
    content = hashlib.sha256(f"{base_id}\n{_DOCKERFILE}\n{installed.digest()}".encode()).hexdigest()
    tag = f"{NAME}:{content[:16]}"
    if _image_id(engine, tag):
        return tag
    with held(engine, NAME, _BUILD_S):
        if not _image_id(engine, tag):  # another process has built it meanwhile
            try:
                also_name(engine, _build(engine, installed, base, progress), tag)
            except BuildError as error:
                raise _explain(error, base) from None
    return tag


def default_base() -> str:
    """A slim image with the Python that runs here."""
    return os.environ.get(BASE_VARIABLE) or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


def _image_id(engine: Engine, name: str) -> str:
    try:
        return str(engine.call("GET", f"/images/{name}/json")["Id"])
    except NotFoundError:
        return ""


def _ensure_base(engine: Engine, base: str, progress: Progress | None) -> str:
    try:
        return find_image(engine, base, progress).id
    except EngineError as error:
        if error.status or not error.is_missing:
            error.fix = f"another base that the engine has, or can reach: --base IMAGE, or {BASE_VARIABLE}"
        raise


def _context(installed: Installed, base: str, mark: str) -> bytes:
    files = installed.files()
    dockerfile = _DOCKERFILE.format(
        base=base,
        ours=" ".join(f'{name}="{value}"' for name, value in {**labels("build"), BUILD: mark}.items()),
        kept=f'{KIND}=image {OWNER}="" {BUILD}=""',
        folder=_FOLDER,
        setup=f"{_FOLDER}/exeat/container/gateway_setup.py",
        data=DATA,
        abi=EXTENSION_SUFFIXES[0],
        magic=MAGIC_NUMBER.hex(),
        modules=", ".join(["exeat.cli.main", *compiled_modules(files)]),
        user=USER,
        port=PORT,
        admin=ADMIN,
    )
    packages = [InstalledFile(f"exeat/{name}", content) for name, content in files]
    return as_tar([InstalledFile("Dockerfile", dockerfile.encode()), *packages])


def _build(engine: Engine, installed: Installed, base: str, progress: Progress | None) -> str:
    """The built image's id. Nothing is fetched while it is built: it has no network."""
    from exeat.container.images.left_over import remove_build_steps  # for those who build

    mark = secrets.token_hex(8)
    # Podman keeps no images between the steps without layers; Docker keeps them, with labels, so that they can go.
    query = {"networkmode": "none", "rm": True, "forcerm": True, "nocache": True, "layers": False}
    context = _context(installed, base, mark)
    lines = engine.stream("POST", "/build", query=query, data=context, headers={"Content-Type": "application/x-tar"})
    try:
        built = _follow(lines, progress, "the gateway image")
    except BuildError:
        remove_build_steps(engine, lambda found: found.get(BUILD) == mark)
        raise
    if not built:
        raise BuildError("the engine did not say which image it has built")
    return built


def _explain(error: BuildError, base: str) -> ConfigError | BuildError:
    """The base does not fit, which is the caller's choice; or the build has failed."""
    lines = [*error.log.splitlines(), error.public]
    why = next((line for line in lines if line.startswith(REFUSED)), "").removeprefix(REFUSED)
    if not why and any("python3" in line and "not found" in line for line in lines):
        why = "it has no python3"
    if not why:
        return error
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ConfigError(
        f"the gateway cannot be built on {base}: {why}",
        expected=f"a base with Python {version} for the same system, such as python:{version}-slim",
    )


def _follow(lines: Iterable[Mapping[str, Any]], progress: Progress | None, what: str) -> str:
    """Read a build or a pull to its end; returns the id of what was built, if that is said."""
    log: list[str] = []
    built = ""
    for line in lines:
        text = str(line.get("stream") or line.get("status") or "").rstrip()
        if text:
            log.append(text)
            if progress is not None:
                progress(text)
        built = (line.get("aux") or {}).get("ID") or built
        if text.startswith("Successfully built "):
            built = built or text.rpartition(" ")[2]
        if "error" in line:
            raise BuildError(f"{what} could not be made: {line['error']}", log="\n".join(log[-200:]))
    return built


def also_name(engine: Engine, image: str, name: str) -> None:
    """Name an image, in addition to the names that it has."""
    repository, version = split_tag(name)
    engine.call("POST", f"/images/{image}/tag", query={"repo": repository, "tag": version})


def split_tag(name: str) -> tuple[str, str]:
    """`NAME:TAG`, where a colon before the last slash is that of a port."""
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, "latest")
