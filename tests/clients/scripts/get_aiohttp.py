"""Print what a URL returns, with aiohttp, which is told its proxy, if there is one: URL [PROXY]."""

import asyncio
import sys

import aiohttp


async def main(url: str, proxy: str | None = None) -> None:
    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, proxy=proxy, raise_for_status=True) as answer,
    ):
        sys.stdout.write(await answer.text())


asyncio.run(main(*sys.argv[1:]))
