"""Run commands in a sandbox from a program of your own, and be asked about what no rule allows."""

import asyncio

import exeat


def decide(question: exeat.Question) -> bool:
    print(f"asked about {question.host}:{question.port}")
    return question.host == "asked.test"


async def main() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nhi\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    names = ("allowed.test", "asked.test", "other.test")
    configuration = {
        "sandbox": {
            "network": {
                "allowed_domains": [f"allowed.test:{port}"],
                "hosts": dict.fromkeys(names, "127.0.0.1"),  # in place of DNS
            }
        }
    }
    async with exeat.SandboxManager(configuration, ask=decide) as manager:
        for name in names:
            done = await manager.run(["curl", "-sS", f"http://{name}:{port}/"], timeout_s=30)
            print(name, "->", done.text.strip())
    server.close()


asyncio.run(main())
