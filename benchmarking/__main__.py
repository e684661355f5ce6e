"""`python -m benchmarking`."""

from common.processes import needing, printing

with needing("bench"):
    from benchmarking.commands.cli import main

if __name__ == "__main__":
    with printing():
        main()
