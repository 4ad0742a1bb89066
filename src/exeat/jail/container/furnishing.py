"""exeat's own files for a container, mounted over those of its image: accounts, certificates, names.

Where there is a way into the container's mounts, accounts and stores are seen to there (`inside.py`). For who may only
talk to the engine they are looked up in the image before (`image_files.py`), and mounted by the engine.
"""

from __future__ import annotations

import os

from exeat.jail.container.accounts import with_account
from exeat.jail.container.image_files import ImageFiles
from exeat.jail.container.inside import ASIDE, JAVA, OWN, Furniture
from exeat.jail.container.options import ContainerOptions, Mount
from exeat.jail.files.mounts import BUNDLE, OWN_CERTIFICATE
from exeat.jail.jail import Spec
from exeat.paths import is_in
from exeat.trust.unnamed_file import content_of
from exeat.values import Value


class Furnishing(Value):
    """`mounts` are for the engine; `wanted` is what is left to do inside, if that is possible."""

    mounts: tuple[Mount, ...] = ()
    wanted: Furniture | None = None


def furnish(spec: Spec, options: ContainerOptions, user: str, image: ImageFiles | None) -> Furnishing:
    """Make the files, in the run's folder. `image` None: there will be a way into the mounts. Raises EngineError."""
    files = _Files(spec.folder)
    made: dict[str, str] = {}
    if spec.trust is not None:
        made[OWN_CERTIFICATE] = files.make("ca.pem", content_of(spec.trust.own))
    over_project: list[str] = []
    wanted = None
    if image is None:
        made |= {path: files.make(name) for name, path in OWN.items()}
        wanted = Furniture(spec.folder, user, options.home, program=spec.argv[0], cwd=spec.cwd)
        if spec.trust is not None:
            wanted = wanted.replace(subject_hash=spec.trust.subject_hash)
            os.mkdir(f"{spec.folder}/aside", 0o755)
            made |= {BUNDLE: files.make("ca-bundle.pem", content_of(spec.trust.bundle)), JAVA: files.make("cacerts")}
            made[ASIDE] = f"{spec.folder}/aside"
    else:
        own = with_account(image.accounts(), user, options.home)
        made |= {"/etc/passwd": files.make("passwd", own.passwd), "/etc/group": files.make("group", own.group)}
        if spec.trust is not None:
            from exeat.jail.container.trust import bundles_in_project, cover_stores  # for those who look into TLS

            pem, certificate = content_of(spec.trust.bundle), made[OWN_CERTIFICATE]
            made |= cover_stores(image.stores(), pem, certificate, spec.trust.subject_hash, files.make)
            over_project = bundles_in_project(spec)
    taken = [mount.target for mount in spec.mounts]
    mounts = (
        # Not in what is the machine's: what is missing to mount on would be made there.
        *(Mount(source, target, True) for target, source in made.items() if not is_in(target, taken)),
        *(Mount(made[BUNDLE], target, True) for target in over_project if target not in taken),
    )
    return Furnishing(mounts, wanted)


class _Files:
    """What is made in a folder of the run."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def make(self, name: str, content: bytes = b"") -> str:
        path = f"{self._folder}/{name}"
        with open(path, "xb") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the umask is
            file.write(content)
        return path
