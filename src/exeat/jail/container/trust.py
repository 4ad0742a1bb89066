"""Whom a command in a container trusts, if TLS is looked into: mounted over the stores of its image.

That is the authority of the run, the roots of this machine and those of the image. The gateway verifies servers by this
machine's roots, whatever the image says. The image's count only where TLS is not looked into: there the command
verifies for itself, as it would without exeat.
"""

from __future__ import annotations

import os

from exeat.jail.container.furnishing import write_file
from exeat.jail.container.image_files import Stores
from exeat.jail.files.mounts import BUNDLE, OWN_CERTIFICATE
from exeat.jail.files.truststore import bundle_paths
from exeat.jail.jail import Spec
from exeat.paths import is_in, is_inside
from exeat.trust.store import as_pem, certificates_of, java_key_store
from exeat.trust.unnamed_file import TrustFiles

_CHUNK = 1 << 20


def trusted(folder: str, trust: TrustFiles, stores: Stores) -> dict[str, str]:
    """Paths in the container, each with a file that is made in this folder."""
    own = write_file(folder, "ca.pem", _content(trust.own))
    pem = _joined(_content(trust.bundle), stores.roots.encode("utf-8", "surrogateescape"))
    bundle = write_file(folder, "ca-bundle.pem", pem)
    found = {BUNDLE: bundle, OWN_CERTIFICATE: own} | dict.fromkeys(stores.bundles, bundle)
    # By a name that no other certificate there has: the authority's name is chosen for each run.
    found |= {f"{path}/{trust.subject_hash}.0": own for path in stores.hashed}
    found |= {f"{path}/exeat.pem": own for path in stores.anchors}
    if stores.java:
        found |= dict.fromkeys(stores.java, write_file(folder, "cacerts", java_key_store(certificates_of(pem))))
    return found


def bundles_in_project(spec: Spec) -> list[str]:
    """Of environments in the working directory, if the container has it."""
    if not any(mount.target == mount.source and is_in(spec.cwd, [mount.target]) for mount in spec.mounts):
        return []
    found = (os.path.realpath(path) for path in bundle_paths({"PATH": "/nonexistent"}, spec.argv[0]))
    return [path for path in dict.fromkeys(found) if is_inside(path, spec.cwd) and os.path.isfile(path)]


def _joined(pem: bytes, more: bytes) -> bytes:
    """The first, with what it does not have of the second."""
    known = set(certificates_of(pem))
    return pem + b"".join(as_pem(der) for der in certificates_of(more) if der not in known)


def _content(descriptor: int) -> bytes:
    parts, at = [], 0
    while data := os.pread(descriptor, _CHUNK, at):  # not read(): the place in the file is shared with others
        parts.append(data)
        at += len(data)
    return b"".join(parts)
