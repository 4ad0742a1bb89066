"""Send the key to a URL and print the answer, with aiohttp, which reads proxy variables if it is asked to."""

import asyncio
import os
import sys

import aiohttp


async def main(url: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
        session.get(url, headers=headers, raise_for_status=True) as answer,
    ):
        sys.stdout.write(await answer.text())


asyncio.run(main(sys.argv[1]))
