"""`python -m lab.demo.split`: the search for shares, on processes of this machine."""

import sys

from inference_api.pipeline.split_search import SearchFailed
from lab.demo.split.engine import EngineFailed
from lab.demo.split.tune import main
from lab.kit.servers import exit_on_sigterm

if __name__ == "__main__":
    exit_on_sigterm()  # it undoes what it did to the processes
    try:
        sys.exit(main())
    except (EngineFailed, SearchFailed) as error:
        sys.exit(str(error))
