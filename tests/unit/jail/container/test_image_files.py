"""What an image has, found through an engine: the stores of distributions, by whatever links, and asked for once."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import NotFoundError
from exeat.jail.container.image_files import ImageFiles
from exeat.jail.container.images import Image
from exeat.jail.container.trust import cover_stores
from exeat.jail.files.mounts import BUNDLE
from exeat.trust.store import certificates_of

_PEM = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n"
_DEBIAN = {
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\n",
    "/etc/ssl/certs/": "",
    "/etc/ssl/certs/ca-certificates.crt": "debian's",
    "/usr/lib/ssl/certs": "-> /etc/ssl/certs",
    "/usr/local/lib/python3.12/site-packages/pip/_vendor/certifi/cacert.pem": "pip's",
    "/usr/lib/python3/dist-packages/certifi/cacert.pem": "-> /etc/ssl/certs/ca-certificates.crt",
}
_ALPINE = {
    "/etc/ssl/certs/ca-certificates.crt": "alpine's",
    "/etc/ssl/cert.pem": "-> certs/ca-certificates.crt",
    "/etc/ssl1.1/cert.pem": "-> ../ssl/cert.pem",
}
_FEDORA = {
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "fedora's",
    "/etc/pki/ca-trust/extracted/java/cacerts": "java's",
    "/etc/pki/ca-trust/source/anchors/": "",
    "/etc/pki/tls/certs/ca-bundle.crt": "-> /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/certs": "-> ../pki/tls/certs",
    "/etc/pki/java/cacerts": "-> /etc/pki/ca-trust/extracted/java/cacerts",
}
_LOOPS = {"/etc/ssl/certs": "-> /etc/ssl/certs", "/etc/pki": "-> ../etc/pki/x", "/etc/passwd": "-> /proc/self/environ"}


class _Answer:
    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers

    def close(self) -> None:
        pass


class _FakeEngine(Engine):
    """An image as a table: a path that ends with / is a folder, and what begins with -> is a link."""

    def __init__(self, image: dict[str, str]) -> None:
        super().__init__("/nowhere", "docker")
        self._files = {path.rstrip("/"): text for path, text in image.items() if not path.endswith("/")}
        above = {str(each) for path in image for each in Path(path).parents}
        self._folders = above | {path.rstrip("/") for path in image if path.endswith("/")}
        self.asked: list[str] = []

    def call(self, method: str, path: str, **more: Any) -> Any:
        self.asked.append(f"{method} {path}")
        return {"Id": "box"}

    def request(self, method: str, path: str, query: Any = None, *_: Any, **more: Any) -> Any:
        name = query["path"]
        if name in self._files:
            text = self._files[name]
            found = {"mode": 1 << 27, "linkTarget": text[3:]} if text.startswith("-> ") else {"mode": 0o644}
        elif name in self._folders:
            found = {"mode": 1 << 31}
        else:
            raise NotFoundError("no such file")
        return _Answer({"x-docker-container-path-stat": base64.b64encode(json.dumps(found).encode()).decode()})

    def raw(self, method: str, path: str, *, query: Any = None, **more: Any) -> bytes:
        packed, content = io.BytesIO(), self._files[query["path"]].encode()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            item = tarfile.TarInfo(Path(query["path"]).name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
        return packed.getvalue()


def _image(**variables: str) -> Image:
    return Image("sha256:abc", "image", variables)


@pytest.mark.parametrize(
    ("image", "bundles", "hashed", "anchors", "java", "roots"),
    [
        (
            _DEBIAN,
            (
                "/etc/ssl/certs/ca-certificates.crt",
                "/usr/local/lib/python3.12/site-packages/pip/_vendor/certifi/cacert.pem",
            ),
            ("/etc/ssl/certs",),
            (),
            (),
            b"debian's",
        ),
        (_ALPINE, ("/etc/ssl/certs/ca-certificates.crt",), ("/etc/ssl/certs",), (), (), b"alpine's"),
        (
            _FEDORA,
            ("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",),
            ("/etc/pki/tls/certs",),
            ("/etc/pki/ca-trust/source/anchors",),
            ("/etc/pki/ca-trust/extracted/java/cacerts",),
            b"fedora's",
        ),
        (_LOOPS, (), (), (), (), b""),
        ({"/app": "static"}, (), (), (), (), b""),
    ],
    ids=["debian", "alpine", "fedora", "loops", "scratch"],
)
def test_stores(image: dict[str, str], bundles: Any, hashed: Any, anchors: Any, java: Any, roots: bytes) -> None:
    found = ImageFiles(_FakeEngine(image), _image(PATH="/usr/local/bin:/usr/bin:/bin"), "").stores()
    assert (found.bundles, found.hashed, found.anchors, found.java, found.roots) == (
        bundles,
        hashed,
        anchors,
        java,
        roots,
    )


def test_what_variables_of_the_image_name() -> None:
    image = {
        "/opt/java/lib/security/cacerts": "java's",
        "/opt/venv/lib/python3.13/site-packages/certifi/cacert.pem": "x",
    }
    variables = {"JAVA_HOME": "/opt/java", "VIRTUAL_ENV": "/opt/venv", "PATH": "relative:/usr/bin"}
    found = ImageFiles(_FakeEngine(image), _image(**variables), "").stores()
    assert (*found.java, *found.bundles) == tuple(image)


def test_it_is_asked_for_once_and_leaves_no_container(tmp_path: Path) -> None:
    engine = _FakeEngine(_DEBIAN)
    for _ in range(2):
        files = ImageFiles(engine, _image(), str(tmp_path / "images"))
        assert files.accounts().passwd == b"root:x:0:0::/root:/bin/sh\n"
        assert files.accounts().group == b""
        assert files.stores().hashed == ("/etc/ssl/certs",)
    assert engine.asked == ["POST /containers/create", "DELETE /containers/box"] * 2
    (remembered,) = (tmp_path / "images").iterdir()
    remembered.write_text("damaged")
    assert ImageFiles(engine, _image(), str(tmp_path / "images")).stores().hashed == ("/etc/ssl/certs",)


def test_the_images_own_roots_stay_trusted() -> None:
    """Where TLS is not looked into, the command verifies for itself."""
    stores = ImageFiles(_FakeEngine(_FEDORA), _image(), "").stores().replace(roots=_PEM % b"QUJD" + _PEM % b"T1dO")
    made: dict[str, bytes] = {}

    def make(name: str, content: bytes) -> str:
        made[name] = content
        return f"/run/{name}"

    covered = cover_stores(stores, _PEM % b"T1dO", "/run/ca.pem", "abcd1234", make)
    assert covered == {
        BUNDLE: "/run/ca-bundle.pem",
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "/run/ca-bundle.pem",
        "/etc/pki/tls/certs/abcd1234.0": "/run/ca.pem",
        "/etc/pki/ca-trust/source/anchors/exeat.pem": "/run/ca.pem",
        "/etc/pki/ca-trust/extracted/java/cacerts": "/run/cacerts",
    }
    assert certificates_of(made["ca-bundle.pem"]) == [b"OWN", b"ABC"]
