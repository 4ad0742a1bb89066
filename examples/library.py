"""Run a program behind a gateway of your own, and print what it tried."""

import asyncio
import os
import sys

import exeat

CHILD = """
import urllib.request
for url in ("http://allowed.test:{port}/", "http://other.test/"):
    try:
        print(url, "->", urllib.request.urlopen(url).read().decode())
    except OSError as error:
        print(url, "->", error)
"""


async def main() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    policy = exeat.make_policy([f"allowed.test:{port}"], hosts={"allowed.test": "127.0.0.1"})
    async with exeat.Gateway(policy) as gateway:
        events = gateway.events()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD.format(port=port), env=os.environ | gateway.environ()
        )
        await child.wait()
    async for event in events:
        if event["event"] == "decision":
            print(event["verdict"], event["method"], event["host"], event["reason"])
    server.close()


asyncio.run(main())
