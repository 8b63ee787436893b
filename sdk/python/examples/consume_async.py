"""The same with asyncio: many at once."""

import asyncio

from relais import AsyncClient, Submitted


async def main() -> None:
    """Submits many tasks in one call and waits for all of them."""
    async with AsyncClient() as client:
        results = await client.submit_many("resize", [{"sizes": [[n, n]], "scale": 2} for n in range(1, 4)])
        ids = [result.task_id for result in results if isinstance(result, Submitted)]
        tasks = await asyncio.gather(*(client.wait("resize", task_id, timeout=30) for task_id in ids))
        print([task.result()["sizes"] for task in tasks])


asyncio.run(main())
