"""curl in a jail, knowing of no proxy."""

from __future__ import annotations

import hashlib

import pytest

from tests.clients.jail.scene import Jail
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.web import HELLO, Reply, Request, hello
from tests.support.programs import need

SCHEMES = pytest.mark.parametrize("scheme", ["http", "https"])


@pytest.fixture(autouse=True)
def _programs() -> None:
    need("curl")


def curl(jail: Jail, *arguments: str) -> list[str]:
    """Quiet but for errors, an HTTP error being one, and trusting our authority."""
    quiet = ["--silent", "--show-error", "--fail-with-body"]
    return ["curl", "--disable", *quiet, "--max-time", "20", "--cacert", str(jail.ca), *arguments]


@SCHEMES
def test_get(any_jail: Jail, start_web: StartWeb, scheme: str) -> None:
    """TLS goes end to end: curl checks the server's own certificate. HTTP is decided as what it is."""
    web = start_web(hello, scheme)
    done = any_jail.prove(
        lambda host: curl(any_jail, f"{scheme}://{host}:{web.port}/"),
        web.port,
        says=HELLO,
        seen=lambda: len(web.requests),
    )
    assert done.requests == (["allow"] if scheme == "http" else [])


def test_a_refusal_says_why(jail: Jail, start_web: StartWeb) -> None:
    """In HTTP by a 403 and a sentence, in TLS by an alert."""
    port = start_web(hello, "http").port
    done = jail.fails(curl(jail, f"http://good.test:{port}/"), "good.test:1")
    assert done.stdout == f"exeat: good.test:{port} is not allowed; to allow it: --allow good.test:{port}\n"
    done = jail.fails(curl(jail, f"https://good.test:{port}/"), "good.test:1")
    assert "access denied" in done.stderr


@SCHEMES
@pytest.mark.parametrize(("family", "start"), [("--ipv4", "198.18."), ("--ipv6", "fd65:7865:6174::")])
def test_both_families(jail: Jail, start_web: StartWeb, scheme: str, family: str, start: str) -> None:
    """A name has an address of each family, and both lead to its server, which has one of them only."""
    port = start_web(hello, scheme).port
    command = curl(jail, family, "--write-out", "%{remote_ip}", f"{scheme}://good.test:{port}/")
    done = jail.works(command, f"good.test:{port}")
    assert done.stdout.startswith(f"{HELLO}{start}")


@SCHEMES
def test_keep_alive(jail: Jail, start_web: StartWeb, scheme: str) -> None:
    """The connection is kept, and each plain request on it is decided by itself."""
    port = start_web(hello, scheme).port
    url = f"{scheme}://good.test:{port}"
    command = curl(
        jail, "--write-out", "%{num_connects} ", "--output", "/dev/null", f"{url}/1", "--output", "/dev/null"
    )
    done = jail.works([*command, f"{url}/2"], f"good.test:{port}", says="1 0 ")
    assert done.requests == (["allow", "allow"] if scheme == "http" else [])


def test_http2(jail: Jail, h2_port: int) -> None:
    """What is agreed on inside TLS passes as it is: the server speaks nothing but HTTP/2."""
    command = curl(jail, "--http2", "--write-out", "%{http_version}", f"https://good.test:{h2_port}/")
    jail.works(command, f"good.test:{h2_port}", says="hello over h2\n2")
    jail.fails(command, "good.test:1")


@SCHEMES
def test_upload(jail: Jail, start_web: StartWeb, scheme: str) -> None:
    """5 MB arrive unchanged. Denied, nothing is sent at all."""
    web = start_web(hello, scheme)
    content = bytes(range(256)) * 20_000
    upload = jail.folder / "upload"
    upload.write_bytes(content)
    command = curl(jail, "--upload-file", str(upload), f"{scheme}://good.test:{web.port}/file")
    jail.fails(command, "good.test:1")
    assert web.requests == []
    jail.works(command, f"good.test:{web.port}", says=hashlib.sha256(content).hexdigest())


def test_upload_of_unknown_length(jail: Jail, start_web: StartWeb) -> None:
    """Read from a pipe, the upload is chunked; it arrives unchanged."""
    web = start_web(hello, "http")
    line = 'head -c 3000000 /dev/zero | "$0" "$@"'
    command = curl(jail, "--upload-file", "-", f"http://good.test:{web.port}/file")
    expected = hashlib.sha256(bytes(3_000_000)).hexdigest()
    jail.works(["sh", "-c", line, *command], f"good.test:{web.port}", says=expected)
    assert web.requests[0].headers["Transfer-Encoding"] == "chunked"


@SCHEMES
def test_redirect_to_a_denied_host(jail: Jail, start_web: StartWeb, scheme: str) -> None:
    """Following a redirect is asking again: to an allowed place it works, to a denied one there is no name."""

    def send_elsewhere(request: Request) -> Reply:
        name = {"/to-good": "good.test", "/to-evil": "evil.test"}.get(request.target)
        if name is None:
            return hello(request)
        port = request.headers["Host"].partition(":")[2]
        return Reply(status=302, headers={"Location": f"{scheme}://{name}:{port}/there"})

    web = start_web(send_elsewhere, scheme)
    good, evil = f"good.test:{web.port}", f"evil.test:{web.port}"
    command = curl(jail, "--location")
    jail.works([*command, f"{scheme}://{good}/to-good"], good, says=HELLO)
    done = jail.run([*command, f"{scheme}://{good}/to-evil"], good)
    assert done.done.status == 6, done  # could not resolve host
    assert set(done.gist) == {("allow", "good.test", web.port, "allowed"), ("deny", "evil.test", 53, "not-listed")}
    assert [request.target for request in web.requests] == ["/to-good", "/there", "/to-evil"]
    done = jail.run([*command, f"{scheme}://{good}/to-evil"], good, evil)
    assert (done.done.status, done.stdout) == (0, HELLO), "with a rule it is followed"


def test_an_address_in_place_of_a_name(jail: Jail, start_web: StartWeb) -> None:
    """An address needs a rule of its own, whatever name curl has for it; loopback is the jail's own, and empty."""
    web = start_web(hello, "http")
    port = web.port
    for where in ("198.51.100.7", "[2001:db8::7]"):
        resolve = f"evil.test:{port}:{where}"
        done = jail.fails(curl(jail, "--resolve", resolve, f"http://evil.test:{port}/"), f"good.test:{port}")
        assert done.gist == [("deny", where.strip("[]"), port, "address-not-listed")]
    outside = curl(jail, f"http://127.0.0.1:{port}/")
    done = jail.run(outside, f"good.test:{port}")
    assert (done.done.status, done.gist) == (7, [("deny", "localhost", port, "not-listed")]), done  # could not connect
    assert web.requests == []
    jail.works(outside, f"127.0.0.1:{port}", says=HELLO)  # listed, it means the host's


def test_another_host_asked_for(jail: Jail, start_web: StartWeb) -> None:
    """A connection to good.test is no way to evil.test on the same server, whatever Host says."""
    web = start_web(hello, "http")
    command = curl(jail, f"http://good.test:{web.port}/")
    jail.works(command, f"good.test:{web.port}", says=HELLO)
    done = jail.run([*command, "--header", f"Host: evil.test:{web.port}"], f"good.test:{web.port}")
    assert done.done.status != 0
    assert done.requests == ["deny"]
    assert len(web.requests) == 1


def test_another_name_asked_for_in_tls(jail: Jail, start_web: StartWeb) -> None:
    """Nor is TLS: asking for evil.test there ends in an alert that curl can show."""
    web = start_web(hello, "https")
    front = f"evil.test:{web.port}:good.test:{web.port}"
    command = curl(jail, "--connect-to", front, f"https://evil.test:{web.port}/")
    done = jail.run(command, f"good.test:{web.port}")
    assert done.done.status != 0
    assert "access denied" in done.stderr
    assert [(line["verdict"], line["reason"]) for line in done.decisions] == [
        ("allow", "allowed"),
        ("deny", "sni-mismatch"),
    ]
    assert web.requests == []
    jail.works(curl(jail, f"https://evil.test:{web.port}/"), f"evil.test:{web.port}", says=HELLO)
