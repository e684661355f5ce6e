"""`python -m lab.demo.split`: the search for shares, on processes of this machine."""

import sys

from lab.demo.split.tune import main
from lab.kit.servers import exit_on_sigterm
from weights.errors import DriveError

if __name__ == "__main__":
    exit_on_sigterm()  # it undoes what it did to the processes
    try:
        sys.exit(main())
    except DriveError as error:
        sys.exit(str(error))
