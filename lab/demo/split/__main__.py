"""`python -m lab.demo.split`: searches for the best split over processes of this machine."""

import sys

from lab.demo.split.tune import main
from lab.kit.servers import exit_on_sigterm
from weights.errors import DriveError

if __name__ == "__main__":
    exit_on_sigterm()  # so that limits on the processes are removed
    try:
        sys.exit(main())
    except DriveError as error:
        sys.exit(str(error))
