"""A gRPC server on loopback that says back what it was told in confidence: CHAIN KEY FILE.

It prints its port. The file gets every authorization that it is shown, before the answer, as a JSON string on a line.
It ends with its input.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc


def shown(context: Any) -> bytes:
    found: str = dict(context.invocation_metadata()).get("authorization", "")
    with record.open("a") as file:
        file.write(f"{json.dumps(found)}\n")
    context.set_trailing_metadata((("x-echo", found),))
    return found.encode()


def unary(message: bytes, context: Any) -> bytes:
    return message + shown(context)


def down(message: bytes, context: Any) -> Iterator[bytes]:
    found = shown(context)
    for number in range(3):
        yield b"%d%b%b" % (number, message, found)


def both(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
    found = shown(context)
    for message in messages:
        yield message + found


def main(chain: str, key: str) -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Down": grpc.unary_stream_rpc_method_handler(down),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    pair = (Path(key).read_bytes(), Path(chain).read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None).wait(10)


record = Path(sys.argv[3])
main(sys.argv[1], sys.argv[2])
