"""The certificates that a command is to trust, as files: where nothing can be mounted."""

from __future__ import annotations

import os
from collections.abc import Mapping

from exeat.errors import StartError
from exeat.run.gateway_process.preparations import Preparations
from exeat.trust.unnamed_file import TrustFiles

_NAMES = ("ca-bundle.pem", "ca.pem", "cacerts")


class TrustFolder:
    """A folder of its own among temporary files, gone when the run is over. Certificates are public."""

    def __init__(self, prepared: Preparations) -> None:
        """Raises StartError if it cannot be had, and then there is none."""
        self._path = ""
        if prepared.trust is None:
            return
        try:
            self._fill(prepared.trust)
        except OSError as error:
            self.remove()
            raise StartError(
                f"the certificates that the command is to trust cannot be written: {error.strerror}",
                detail="they go to a folder among temporary files; TMPDIR says where",
            ) from None

    def _fill(self, trust: TrustFiles) -> None:
        import tempfile  # noqa: PLC0415 - for runs that look into TLS

        self._path = tempfile.mkdtemp(prefix="exeat-")
        for name, descriptor in zip(_NAMES, (trust.bundle, trust.own, trust.java), strict=True):
            with open(descriptor, "rb", closefd=False) as source, open(f"{self._path}/{name}", "xb") as target:
                source.seek(0)
                target.write(source.read())

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        if not self._path:
            return {}
        from exeat.trust.places import trust_variables  # noqa: PLC0415

        bundle, own, java = (f"{self._path}/{name}" for name in _NAMES)
        return trust_variables(bundle, java, inherited, own=own)

    def remove(self) -> None:
        """Files first; whatever else somebody put there stays, and so does the folder then."""
        if not self._path:
            return
        for name in _NAMES:
            try:
                os.unlink(f"{self._path}/{name}")
            except OSError:
                pass  # gone already
        try:
            os.rmdir(self._path)
        except OSError:
            pass
