"""The proxies that look into TLS, each set up to put one value in place of one placeholder, for one host.

All of them verify the origin's certificate, and make certificates for the client from an authority of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.guarded import HOST, PLACEHOLDER, PORT, VALUE, authority_path
from bench.peers import Exeat, Mitmproxy, Peer, SandboxRuntime
from bench.process import HERE, ROOT, BenchError

WHAT = {"BENCH_HOST": HOST, "BENCH_PLACEHOLDER": PLACEHOLDER, "BENCH_VALUE": VALUE}


class InterceptingExeat(Exeat):
    def __init__(self, program: str | None = None, secrets: int = 1) -> None:
        super().__init__(program)
        self.secrets = secrets

    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        python = str(ROOT / ".venv" / "bin" / "python")
        if Path(self.argv[0]).parent != Path(python).parent:
            raise BenchError("interception is measured inside Python, so only of the build in .venv")
        return [python, "-m", "bench.exeat_intercept", str(port), str(home / "audit.jsonl"), str(self.secrets)], {}


class InterceptingMitmproxy(Mitmproxy):
    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        argv, env = super().command(port, home, tunnels=False)
        options = {"ssl_verify_upstream_trusted_ca": str(authority_path()), "stream_large_bodies": "1m"}
        more = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
        return [*argv, *more, "-s", str(HERE / "mitmproxy_addon.py")], {**env, **WHAT}


class InterceptingSandboxRuntime(SandboxRuntime):
    def command(self, port: int, home: Path, *, tunnels: bool) -> tuple[Sequence[str], dict[str, str]]:
        argv, env = super().command(port, home, tunnels=True)
        # It keeps its authority and a socket for each connection where temporary files go.
        more = {"NODE_EXTRA_CA_CERTS": str(authority_path()), "TMPDIR": str(home)}
        return [*argv, f"{HOST}:{PORT}"], {**env, **more, **WHAT}


def interceptors(peers: Sequence[Peer], exeat_program: str | None) -> list[Peer]:
    """Of the peers that are here, those that can do this, set up for it."""
    known: Mapping[str, Peer] = {
        Exeat.name: InterceptingExeat(exeat_program),
        Mitmproxy.name: InterceptingMitmproxy(),
        SandboxRuntime.name: InterceptingSandboxRuntime(),
    }
    return [known[peer.name] for peer in peers if peer.name in known]
