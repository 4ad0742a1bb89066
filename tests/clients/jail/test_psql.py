"""psql in a jail: a protocol that no gateway knows, with TLS that begins in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.jail.scene import USERS, Jail
from tests.support.origins.postgres import Postgres
from tests.support.origins.tls_echo import Certificates
from tests.support.programs import need
from tests.support.runs.running import folder_of


@pytest.fixture(scope="module")
def postgres(authority: Certificates) -> Iterator[Postgres]:
    need("psql")
    with folder_of(None) as folder:
        started = Postgres(folder, authority.chain, authority.key)
        yield started
        started.close()


def psql(jail: Jail, postgres: Postgres, host: str, mode: str, *arguments: str) -> list[str]:
    place = f"host={host} port={postgres.port} dbname=postgres user=visitor connect_timeout=20 sslmode={mode}"
    # With "require" there is to be no check, and a file of authorities would make one.
    trust = f" sslrootcert={jail.ca}" if mode == "verify-full" else ""
    command = ["psql", "--no-psqlrc", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]
    return [*command, f"{place}{trust}", *arguments]


@pytest.mark.parametrize(
    ("mode", "uses_tls", "any_jail"),
    [("disable", "f", None), ("require", "t", None), *(("verify-full", "t", uid) for uid in USERS.values())],
    ids=["disable", "require", *(f"verify-full-{name}" for name in USERS)],
    indirect=["any_jail"],
)
def test_query(any_jail: Jail, postgres: Postgres, mode: str, uses_tls: str) -> None:
    """Also with the server's certificate checked for the name: it is the name that psql asked for."""
    question = "select ssl, 6 * 7 from pg_stat_ssl where pid = pg_backend_pid()"
    any_jail.prove(
        lambda host: psql(any_jail, postgres, host, mode, "--command", question),
        postgres.port,
        says=f"{uses_tls}|42\n",
        seen=lambda: postgres.connections,
    )


def test_much_data_both_ways(jail: Jail, postgres: Postgres) -> None:
    """COPY in and out of the server, some megabytes, over TLS, comes back unchanged."""
    sent = jail.folder / "sent.txt"
    sent.write_text("".join(f"{number}\t{'x' * 50}\n" for number in range(50_000)))
    script = [
        "create temporary table moved (number int, filler text)",
        f"\\copy moved from '{sent}'",
        f"\\copy (select * from moved order by number) to '{jail.folder / 'back.txt'}'",
    ]
    commands = [word for line in script for word in ("--command", line)]
    jail.works(psql(jail, postgres, "good.test", "require", *commands), f"good.test:{postgres.port}")
    assert (jail.folder / "back.txt").read_bytes() == sent.read_bytes()
