"""`python -m benchmarking`."""

from benchmarking.commands.cli import main

if __name__ == "__main__":
    main()
