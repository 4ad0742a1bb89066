"""Port 443, which is what a secret's host means without one: URLs as they are written everywhere."""

from __future__ import annotations

import pytest

from tests.clients.secrets.scene import Ward, leaks
from tests.clients.secrets.servers import DOMAIN, VALUE
from tests.support.gateways.webports import on_web_ports
from tests.support.origins.tls_echo import Certificates, TlsOrigin, credentials
from tests.support.programs import need
from tests.support.runs.running import folder_of

SERVER = "127.0.0.45"


@pytest.mark.parametrize("options", [[], ["--no-proxy-env"]], ids=["proxy", "no-proxy"])
@on_web_ports
def test_curl(certificates: Certificates, options: list[str]) -> None:
    need("curl")
    origin = TlsOrigin(certificates, at=(SERVER, 443))
    try:
        with folder_of(None) as folder:
            ward = Ward(folder, None, certificates.ca, [DOMAIN])
            ward.address = SERVER
            sent = f'echo $API_KEY; curl -sS -H "Authorization: Bearer $API_KEY" https://{DOMAIN}/'
            done = ward.run(["sh", "-c", sent], *options)
        assert done.status == 0, done
        key, answer = done.stdout.splitlines()
        assert f'"authorization": "Bearer {key}"' in answer
        assert not leaks(done.stdout + done.stderr)
        assert [credentials(each) for each in origin.requests] == [VALUE]
    finally:
        origin.close()
