"""`agl-stream broker`, but on a dying disk: `dying_broker.py FOLDER PORT POLICY TARGET COUNTDOWN SEED PLATTER`.

Housekeeping runs all the time and checkpoints come after every kilobyte, so that each kind of file is written often.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from dying_disk import DyingDisk

from agl_stream.infra.embedded.config import BrokerConfig
from agl_stream.infra.embedded.process import serve_until_signalled
from agl_stream.infra.embedded.server import housekeeping
from agl_stream.infra.embedded.server.broker import EmbeddedBroker


async def main() -> None:
    folder, port, policy, target, countdown, seed, platter = sys.argv[1:]
    housekeeping.CHECKPOINT_BYTES = 1024
    DyingDisk(Path(folder), target, int(countdown), int(seed), Path(platter)).install()
    config = BrokerConfig(flush_policy=policy, housekeeping_seconds=0.1, group_initial_rebalance_delay_ms=0)  # type: ignore[arg-type]
    broker = EmbeddedBroker(folder, port=int(port), config=config)
    await serve_until_signalled(
        broker, lambda: print(json.dumps({"bootstrap_servers": broker.bootstrap_servers}), flush=True)
    )


asyncio.run(main())
