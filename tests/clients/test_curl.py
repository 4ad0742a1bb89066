"""curl through the gateway, in all the ways that it knows to use a proxy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.clients.scene import HOSTS, Scene
from tests.support.fixtures.gateways import StartGate
from tests.support.fixtures.programs import SetScene
from tests.support.origins.tls_echo import Certificates
from tests.support.origins.web import HELLO, Reply, Request, hello
from tests.support.programs import need


@pytest.fixture(autouse=True)
def _programs() -> None:
    need("curl")


def curl(scene: Scene, *arguments: str) -> list[str]:
    """Quiet but for errors, an HTTP error being one, and trusting our authority."""
    return [
        "curl",
        "--silent",
        "--show-error",
        "--fail-with-body",
        "--max-time",
        "20",
        "--cacert",
        str(scene.ca),
        *arguments,
    ]


def test_plain_http(set_scene: SetScene) -> None:
    """A GET by absolute URL works; a denied one is a 403 with the sentence that says why."""
    scene = set_scene()
    done = scene.allowed(curl(scene, "--proxy", scene.proxy, scene.good), by=["http"])
    assert done.stdout == HELLO
    done = scene.denied(curl(scene, "--proxy", scene.proxy, scene.evil), by="http")
    assert done.stdout == f"exeat: evil.test:{scene.port} is not allowed; to allow it: --allow evil.test:{scene.port}\n"


def test_the_gateways_own_variables(set_scene: SetScene) -> None:
    """The environment that a sandbox gets is enough for curl, for http and https."""
    for scheme, protocol in (("http", "http"), ("https", "connect")):
        scene = set_scene(scheme)
        assert scene.allowed(curl(scene, scene.good), scene.proxy_env, by=[protocol]).stdout == HELLO
        scene.denied(curl(scene, scene.evil), scene.proxy_env, by=protocol)


def test_https_through_connect(set_scene: SetScene) -> None:
    """TLS goes end to end: curl checks the server's own certificate. A denied CONNECT is reported as such."""
    scene = set_scene("https")
    done = scene.allowed(curl(scene, "--proxy", scene.proxy, scene.good), by=["connect"])
    assert done.stdout == HELLO
    done = scene.denied(curl(scene, "--proxy", scene.proxy, scene.evil), by="connect")
    assert "403" in done.stderr


@pytest.mark.parametrize(
    ("scheme", "protocols"), [("http", ["socks5", "socks5/http"]), ("https", ["socks5"])], ids=["http", "https"]
)
@pytest.mark.parametrize("told_by", ["option", "ALL_PROXY"])
def test_socks5_with_names_left_to_the_gateway(
    set_scene: SetScene, scheme: str, protocols: list[str], told_by: str
) -> None:
    """SOCKS5 on the same port. HTTP inside is decided once more, as HTTP; TLS is not opened."""
    scene = set_scene(scheme)
    if told_by == "option":
        options, env = ["--socks5-hostname", f"127.0.0.1:{scene.gate.port}"], scene.env
    else:
        options, env = [], {**scene.env, "ALL_PROXY": scene.socks}
    assert scene.allowed(curl(scene, *options, scene.good), env, by=protocols).stdout == HELLO
    scene.denied(curl(scene, *options, scene.evil), env, by="socks5")


def test_plain_http_in_a_tunnel(set_scene: SetScene) -> None:
    """With --proxytunnel the CONNECT is decided, and so is the request inside it."""
    scene = set_scene()
    command = curl(scene, "--proxy", scene.proxy, "--proxytunnel")
    assert scene.allowed([*command, scene.good], by=["connect", "connect/http"]).stdout == HELLO
    scene.denied([*command, scene.evil], by="connect")


def test_another_host_asked_for_inside_a_tunnel(set_scene: SetScene) -> None:
    """A tunnel to good.test is no way to evil.test on the same server, whatever Host says."""
    scene = set_scene()
    command = curl(scene, "--proxy", scene.proxy, "--proxytunnel", scene.good)
    scene.allowed(command, by=["connect", "connect/http"])
    done, made = scene.attempt([*command, "--header", f"Host: evil.test:{scene.port}"])
    assert done.status != 0
    assert [line["verdict"] for line in made] == ["allow", "deny"]
    assert len(scene.requests) == 1


@pytest.mark.parametrize("door", ["http", "socks5h"])
def test_another_name_asked_for_in_tls(set_scene: SetScene, door: str) -> None:
    """Nor is TLS: a tunnel to good.test in which evil.test is asked for ends in an alert that curl can show."""
    scene = set_scene("https")
    command = curl(scene, "--proxy", f"{door}://127.0.0.1:{scene.gate.port}")
    by = "connect" if door == "http" else "socks5"
    scene.allowed([*command, scene.good], by=[by])
    front = f"evil.test:{scene.port}:good.test:{scene.port}"
    done, made = scene.attempt([*command, "--connect-to", front, scene.evil])
    assert done.status != 0
    assert "access denied" in done.stderr
    assert [(line["verdict"], line["reason"]) for line in made] == [("allow", "allowed"), ("deny", "sni-mismatch")]
    assert len(scene.requests) == 1


def test_redirect_to_a_denied_host(set_scene: SetScene) -> None:
    """Following a redirect is asking again: to an allowed place it works, to a denied one it is one denial."""

    def send_elsewhere(request: Request) -> Reply:
        name = {"/to-good": "good.test", "/to-evil": "evil.test"}.get(request.target)
        if name is None:
            return hello(request)
        port = request.headers["Host"].partition(":")[2]
        return Reply(status=302, headers={"Location": f"http://{name}:{port}/there"})

    scene = set_scene("http", send_elsewhere)
    command = curl(scene, "--proxy", scene.proxy, "--location")
    assert scene.allowed([*command, f"{scene.good}/to-good"], by=["http", "http"]).stdout == HELLO
    done, made = scene.attempt([*command, f"{scene.good}/to-evil"])
    assert done.status != 0
    assert [(line["verdict"], line["host"]) for line in made] == [("allow", "good.test"), ("deny", "evil.test")]
    assert [request.target for request in scene.requests] == ["/to-good", "/there", "/to-evil"]


def test_upload_with_expect(set_scene: SetScene, tmp_path: Path) -> None:
    """5 MB wait for 100 Continue, then arrive unchanged. Denied, nothing is sent at all."""
    scene = set_scene()
    content = bytes(range(256)) * 20_000
    (tmp_path / "upload").write_bytes(content)
    command = curl(scene, "--proxy", scene.proxy, "--verbose", "--upload-file", str(tmp_path / "upload"))
    done = scene.allowed([*command, f"{scene.good}/file"], by=["http"])
    assert "< HTTP/1.1 100 Continue" in done.stderr
    assert done.stdout == hashlib.sha256(content).hexdigest()
    assert scene.requests[0].headers["Expect"] == "100-continue"
    done = scene.denied([*command, f"{scene.evil}/file"], by="http")
    assert "< HTTP/1.1 403 Forbidden" in done.stderr


def test_upload_of_unknown_length(set_scene: SetScene, tmp_path: Path) -> None:
    """Read from a pipe, the upload is chunked; it arrives unchanged."""
    scene = set_scene()
    content = bytes(range(256)) * 4_000
    (tmp_path / "upload").write_bytes(content)
    line = 'cat "$0" | "$@"'
    command = ["sh", "-c", line, str(tmp_path / "upload"), *curl(scene, "--proxy", scene.proxy, "--upload-file", "-")]
    done = scene.allowed([*command, f"{scene.good}/file"], by=["http"])
    assert done.stdout == hashlib.sha256(content).hexdigest()
    assert scene.requests[0].headers["Transfer-Encoding"] == "chunked"
    scene.denied([*command, f"{scene.evil}/file"], by="http")


def test_http_1_0(set_scene: SetScene) -> None:
    """An old client is served, and told apart from nothing: the same rules decide."""
    scene = set_scene()
    command = curl(scene, "--proxy", scene.proxy, "--http1.0")
    assert scene.allowed([*command, scene.good], by=["http"]).stdout == HELLO
    scene.denied([*command, scene.evil], by="http")


def test_two_urls_on_one_connection(set_scene: SetScene) -> None:
    """The connection to the gateway is kept, and each request on it is decided by itself: one denial, one failure."""
    scene = set_scene()
    command = curl(scene, "--proxy", scene.proxy, "--write-out", "%{num_connects} %{http_code}\n")
    good, good_too, evil = (
        ["--output", "/dev/null", url] for url in (f"{scene.good}/1", f"{scene.good}/2", scene.evil)
    )
    done = scene.allowed([*command, *good, *good_too], by=["http", "http"])
    assert done.stdout == "1 200\n0 200\n"
    assert [(line["conn"], line["req"]) for line in scene.decisions()] == [(1, 1), (1, 2)]

    done, made = scene.attempt([*command, "--fail-early", *good, *evil, *good_too])
    assert done.status != 0
    assert done.stdout == "1 200\n0 403\n"
    assert [(line["verdict"], line["conn"], line["req"]) for line in made] == [("allow", 2, 1), ("deny", 2, 2)]
    assert [request.target for request in scene.requests] == ["/1", "/2", "/1"]


def test_a_connection_outlives_a_denial(set_scene: SetScene) -> None:
    """Good, evil, good in one command and on one connection: the denial costs only the request that it is for."""
    scene = set_scene()
    command = curl(scene, "--proxy", scene.proxy, "--write-out", "%{num_connects} %{http_code}\n")
    for url in (f"{scene.good}/1", f"{scene.evil}/2", f"{scene.good}/3"):
        command += ["--output", "/dev/null", url]
    done, made = scene.attempt(command)
    assert done.stdout == "1 200\n0 403\n0 200\n"
    assert [line["verdict"] for line in made] == ["allow", "deny", "allow"]
    assert [request.target for request in scene.requests] == ["/1", "/3"]


@pytest.mark.parametrize(
    ("scheme", "door", "protocols"),
    [
        ("http", "http", ["http"]),
        ("https", "http", ["connect"]),
        ("http", "socks5h", ["socks5", "socks5/http"]),
        ("https", "socks5h", ["socks5"]),
    ],
    ids=["http", "https", "socks-http", "socks-https"],
)
def test_proxy_with_credentials(set_scene: SetScene, scheme: str, door: str, protocols: list[str]) -> None:
    """User and password in the proxy's URL open every door; wrong or missing ones open none, for no host."""
    scene = set_scene(scheme, credentials=("some body", "p@ss:word/"))
    proxy = scene.proxy if door == "http" else scene.socks
    address = f"{door}://127.0.0.1:{scene.gate.port}"
    assert scene.allowed(curl(scene, "--proxy", proxy, scene.good), by=protocols).stdout == HELLO
    scene.denied(curl(scene, "--proxy", proxy, scene.evil), by=protocols[0])
    assert scene.requests[0].headers["Proxy-Authorization"] is None
    for login in ([], ["--proxy-user", "some body:wrong"]):
        done, made = scene.attempt(curl(scene, "--proxy", address, *login, scene.good))
        assert done.status != 0
        assert [(line["verdict"], line["reason"]) for line in made] == [("deny", "credentials")]
    assert len(scene.requests) == 1


def test_http2_in_a_tunnel(h2_port: int, start_gate: StartGate, env: dict[str, str], authority: Certificates) -> None:
    """What is agreed on inside TLS is none of the gateway's business: HTTP/2 passes, to an allowed host."""
    gate = start_gate(allow=[f"good.test:{h2_port}"], hosts=HOSTS)
    scene = Scene(gate, "https", h2_port, [], env, authority.ca)
    command = curl(scene, "--proxy", scene.proxy, "--http2", "--write-out", "%{http_version}")
    assert scene.allowed([*command, scene.good], by=["connect"]).stdout == "hello over h2\n2"
    scene.denied([*command, scene.evil], by="connect")
