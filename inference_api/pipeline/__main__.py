"""Runs one rank. Rank 0 is the API server; the others work for it.

    RANK=1 WORLD_SIZE=3 MASTER_ADDR=10.0.0.1 python -m inference_api.pipeline

The settings are the API's, from the environment, and the same for all ranks.
"""

import logging
import logging.config
import os
import signal
import sys
from dataclasses import replace

from common.logs import logging_config
from common.processes import end_with_parent
from inference_api.errors import StartupError
from inference_api.loading.checkpoint import load_config, locate
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.messages import BadMessage
from inference_api.pipeline.rank_runners import part_runners
from inference_api.pipeline.rank_worker import RankWorker
from inference_api.pipeline.ranks import RankSettings, load_rank_settings
from inference_api.pipeline.ring import Ring, RingBroken
from inference_api.settings import Settings, load_settings
from inference_api.shipped_files import SHIPPED

GUNICORN_CONFIG = SHIPPED / "gunicorn.conf.py"

logger = logging.getLogger(__name__)


def main() -> None:
    try:
        ranks, settings = load_rank_settings(), load_settings()
        if settings.split is None:
            raise StartupError("SPLIT is not set; set it to auto, or to the layers of each rank.")
    except StartupError as error:
        sys.exit(str(error))
    if ranks.rank == 0:
        # The API drains when it gets SIGTERM.
        end_with_parent()
        command = [sys.executable, "-m", "gunicorn", "--config", str(GUNICORN_CONFIG)]
        os.execv(sys.executable, command)
    end_with_parent(signal.SIGKILL)
    logging.config.dictConfig(logging_config(settings.log_level, settings.log_format))
    sys.exit(_work(ranks, settings))


def _work(ranks: RankSettings, settings: Settings) -> int:
    """Runs a rank other than rank 0. Returns the exit status."""
    model = settings.default_model
    try:
        options = replace(EngineOptions.from_settings(model), card=ranks.local_rank)
        folder = locate(model.model)
        hidden_size = load_config(folder).hidden_size
        make_runner = part_runners(folder, options, ranks.local_world_size)
        ring = Ring.join(ranks, hidden_size, settings.split_timeout_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # rank 0 needs this rank until it has drained
        RankWorker(ring, make_runner).run()
    except (StartupError, RingBroken, BadMessage, MemoryError) as error:
        logger.critical("rank %d ends: %s", ranks.rank, error)
        return 1
    return 0


if __name__ == "__main__":
    main()
