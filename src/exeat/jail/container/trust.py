"""The certificates that a command in a container trusts, if exeat looks into TLS: mounted by the engine.

That is the authority of the run, the roots of this machine and those of the image. The gateway verifies servers by this
machine's roots, whatever the image says. The image's count only where TLS is not looked into: there the command
verifies for itself, as it would without exeat.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from exeat.jail.container.image_files import Stores
from exeat.jail.files.mounts import BUNDLE
from exeat.jail.files.truststore import bundle_paths
from exeat.jail.jail import Spec
from exeat.paths import is_in, is_inside
from exeat.trust.store import certificates_of, java_key_store, joined


def cover_stores(
    stores: Stores, pem: bytes, own: str, subject_hash: str, make: Callable[[str, bytes], str]
) -> dict[str, str]:
    """Paths in the container, each with the file that is to be there. `own` has the authority; `make` makes others."""
    pem = joined(pem, stores.roots)
    bundle = make("ca-bundle.pem", pem)
    found = {BUNDLE: bundle} | dict.fromkeys(stores.bundles, bundle)
    # By a name that no other certificate there has: the authority's name is chosen for each run.
    found |= {f"{path}/{subject_hash}.0": own for path in stores.hashed}
    found |= {f"{path}/exeat.pem": own for path in stores.anchors}
    if stores.java:
        found |= dict.fromkeys(stores.java, make("cacerts", java_key_store(certificates_of(pem))))
    return found


def bundles_in_project(spec: Spec) -> list[str]:
    """Of environments in the working directory, if the container has it."""
    if not any(mount.target == mount.source and is_in(spec.cwd, [mount.target]) for mount in spec.mounts):
        return []
    found = (os.path.realpath(path) for path in bundle_paths({"PATH": "/nonexistent"}, spec.argv[0]))
    return [path for path in dict.fromkeys(found) if is_inside(path, spec.cwd) and os.path.isfile(path)]
