"""``python forward.py LISTEN_ADDRESS TARGET_ADDRESS PORT...``: each port here leads to the same port there."""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            writer.close()


async def main(listen: str, target: str, ports: list[int]) -> None:
    async def serve(port: int) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                to_reader, to_writer = await asyncio.open_connection(target, port)
            except OSError:
                writer.transport.abort()
                return
            await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))

        await asyncio.start_server(connected, listen, port)

    for port in ports:
        await serve(port)
    print("forwarding", *ports, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]]))
