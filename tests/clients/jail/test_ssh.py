"""ssh in a jail, and git over it, knowing of no proxy and of no ProxyCommand, with OpenSSH's own server."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.jail.scene import SOMEBODY, Jail
from tests.support.gateways.scene import wait_until
from tests.support.origins.git import FIRST_FILE, git, git_environment, make_repository
from tests.support.origins.ssh import Sshd
from tests.support.origins.tls_echo import Certificates
from tests.support.programs import need, run
from tests.support.runs.running import AS_ROOT, as_user, folder_of

OTHER_SETTINGS = 'mount --bind "$0" /etc/ssh/ssh_config.d && exec "$@"'


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with folder_of(None) as folder:
        started = Sshd(folder)
        yield started
        started.close()


class Client:
    """ssh with a key, and the host's key known. Someone has the machine's settings, as users do."""

    def __init__(self, jail: Jail, sshd: Sshd) -> None:
        self.jail = jail
        self.sshd = sshd
        key, known = jail.folder / "key", jail.folder / "known_hosts"
        key.write_bytes(sshd.identity.read_bytes())
        key.chmod(0o600)
        known.write_text("".join(f"[{host}]:{sshd.port} {sshd.host_key}\n" for host in jail.hosts))
        jail.give(key, known)
        files = ["-i", str(key), "-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=/dev/null"]
        strict = ["-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]
        # The caller may have settings at home that lead elsewhere: ssh looks for them whatever HOME says.
        settings = ["-F", "none"] if jail.uid is None else []
        self.ssh = ["ssh", *settings, *files, *strict]

    def command(self, host: str, *remote: str) -> list[str]:
        return [*self.ssh, "-p", str(self.sshd.port), f"{self.sshd.user}@{host}", *remote]


@pytest.fixture
def client(any_jail: Jail, sshd: Sshd) -> Client:
    return Client(any_jail, sshd)


def test_a_command(client: Client) -> None:
    """Both sides speak at once, the server often first. What comes back is all there, and so is the exit status."""
    port = client.sshd.port
    client.jail.prove(
        lambda host: client.command(host, "echo hello from there"),
        port,
        says="hello from there\n",
        seen=lambda: client.sshd.connections,
    )
    done = client.jail.run(client.command("good.test", "head -c 300000 /dev/zero; exit 7"), f"good.test:{port}")
    assert (done.done.status, len(done.stdout)) == (7, 300_000)


def test_another_port_of_an_allowed_host(client: Client) -> None:
    """A rule without a port means the web's, and no ssh."""
    seen = client.sshd.connections
    done = client.jail.fails(client.command("good.test", "echo hello"), "good.test")
    assert set(done.gist) == {("deny", "good.test", client.sshd.port, "port-not-listed")}
    assert done.stdout == ""
    assert client.sshd.connections == seen


def test_the_hosts_loopback_is_not_there(client: Client) -> None:
    """127.0.0.1 is the jail's own, where no one listens."""
    seen = client.sshd.connections
    done = client.jail.run(client.command("127.0.0.1", "echo hello"), f"good.test:{client.sshd.port}")
    assert done.done.status == 255, done
    assert "Connection refused" in done.stderr
    assert client.sshd.connections == seen


def test_a_key_that_only_an_agent_has(client: Client) -> None:
    """The key is hidden at home, as keys are. Its agent is reached by `--unix` and not without, wherever it lies."""
    need("ssh-agent", "ssh-add")
    jail, place = client.jail, f"good.test:{client.sshd.port}"
    hidden = Path(jail.env["HOME"]) / ".ssh"
    hidden.mkdir()
    key = (jail.folder / "key").rename(hidden / "id_ed25519")
    jail.give(hidden)
    with folder_of(jail.uid) as folder, agent_with(key, folder / "agent.sock", jail.uid) as socket:
        # Of two settings the first counts.
        command = ["ssh", "-F", "none", "-o", "IdentitiesOnly=no", *client.ssh[client.ssh.index("-o") :]]
        command += ["-p", str(client.sshd.port), f"{client.sshd.user}@good.test", "echo hello"]
        env = {"SSH_AUTH_SOCK": str(socket)}
        assert "Permission denied" in jail.run(command, place, env=env).stderr
        jail.options = ["--unix", str(socket)]
        jail.works(command, place, env=env, says="hello\n")
        assert "No such file" in jail.run(["cat", str(key)], env=env).stderr


@contextmanager
def agent_with(key: Path, socket: Path, uid: int | None) -> Iterator[Path]:
    with subprocess.Popen([*as_user(uid), "ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        try:
            wait_until(socket.exists, "the agent to listen")
            done = run([*as_user(uid), "ssh-add", "-q", str(key)], {**os.environ, "SSH_AUTH_SOCK": str(socket)})
            assert done.status == 0, done
            yield socket
        finally:
            agent.terminate()


@AS_ROOT
def test_settings_of_root_are_read_by_somebody(sshd: Sshd, authority: Certificates) -> None:
    """ssh refuses settings of strangers, and in a user namespace root's look like theirs."""
    need("unshare", "mount")
    with folder_of(None) as settings, folder_of(SOMEBODY) as folder:
        (settings / "50-short.conf").write_text("Host short.test\n  HostName good.test\n")
        client = Client(Jail(folder, SOMEBODY, authority.ca), sshd)
        client.jail.before = ["unshare", "--mount", "sh", "-c", OTHER_SETTINGS, str(settings)]
        known = ["-o", f"HostKeyAlias=[good.test]:{sshd.port}"]
        command = [*client.ssh, *known, "-p", str(sshd.port), f"{sshd.user}@short.test", "echo hello"]
        client.jail.works(command, f"good.test:{sshd.port}", says="hello\n")


class Depot:
    """A repository that the server's user owns, and git told which ssh to use."""

    def __init__(self, client: Client, folder: Path) -> None:
        need("git")
        self.client = client
        self.folder = client.jail.folder
        self.repository = folder / "depot.git"
        home = folder / "home"
        home.mkdir()
        self.local = git_environment(
            {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / "c")}
        )
        # Made by root, the repository is the server's; whoever looks at it then must not be bothered by that.
        git(self.local, "config", "--global", "safe.directory", "*")
        make_repository(self.repository, self.local, folder / "first")
        if client.sshd.uid is not None:
            for path in (self.repository, *self.repository.rglob("*")):
                os.chown(path, client.sshd.uid, client.sshd.uid)
        self.env = git_environment({"GIT_SSH_COMMAND": " ".join(client.ssh), "GIT_SSH_VARIANT": "ssh"})

    def url(self, host: str) -> str:
        return f"ssh://{self.client.sshd.user}@{host}:{self.client.sshd.port}{self.repository}"

    def head(self) -> str:
        return git(self.local, "rev-parse", "main", cwd=self.repository)


@pytest.fixture
def depot(client: Client) -> Iterator[Depot]:
    with folder_of(None) as folder:
        yield Depot(client, folder)


def test_git_clone(depot: Depot) -> None:
    jail, sshd = depot.client.jail, depot.client.sshd
    jail.prove(
        lambda host: ["git", "clone", "--quiet", depot.url(host), str(depot.folder / host)],
        sshd.port,
        env=depot.env,
        seen=lambda: sshd.connections,
    )
    for host in ("good.test", "evil.test"):
        assert (depot.folder / host / "README").read_text() == FIRST_FILE


@pytest.mark.parametrize("any_jail", [None], ids=["caller"], indirect=True)
def test_git_fetch_and_push(depot: Depot) -> None:
    """2 MB are pushed from one clone and fetched into another; denied, neither changes anything."""
    jail, place, env = depot.client.jail, f"good.test:{depot.client.sshd.port}", depot.env
    one, other = depot.folder / "one", depot.folder / "other"
    for clone in (one, other):
        jail.works(["git", "clone", "--quiet", depot.url("good.test"), str(clone)], place, env=env)
    before = depot.head()

    (one / "large").write_bytes(os.urandom(2_000_000))
    jail.give(one)
    commit = "git add large && git commit --quiet --message=large"
    push = ["git", "push", "--quiet", "origin", "main"]
    jail.fails(["sh", "-c", f"{commit} && {shlex.join(push)}"], "good.test:1", env=env, cwd=one)
    assert depot.head() == before
    jail.works(push, place, env=env, cwd=one)
    assert depot.head() != before

    fetch = ["git", "fetch", "--quiet", "origin", "main:fetched"]
    jail.fails(fetch, "good.test:1", env=env, cwd=other)
    jail.works(fetch, place, env=env, cwd=other)
    assert git(depot.local, "rev-parse", "fetched", cwd=other) == depot.head()
