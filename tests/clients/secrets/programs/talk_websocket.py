"""Open a WebSocket with the key in a header, say something, and print what came back as JSON."""

import json
import os
import sys

from websockets.sync.client import connect

headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
with connect(sys.argv[1], additional_headers=headers, open_timeout=20) as socket:
    socket.send("hello")
    assert socket.response is not None
    json.dump({"echo": socket.response.headers["X-Echo"], "said": socket.recv(timeout=20)}, sys.stdout)
