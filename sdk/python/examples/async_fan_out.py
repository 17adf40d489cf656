"""Many sandboxes at once with asyncio."""

import asyncio

from husk import AsyncSandbox


async def work(number: int) -> str:
    async with AsyncSandbox.create(template="base", ttl_seconds=300, metadata={"job": str(number)}) as sandbox:
        result = await sandbox.exec(["expr", str(number), "*", str(number)], timeout_seconds=60, check=True)
        return result.stdout.strip()


async def main() -> None:
    squares = await asyncio.gather(*(work(number) for number in range(1, 5)))
    print("done:", ", ".join(squares))


asyncio.run(main())
