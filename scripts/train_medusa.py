"""Trains Medusa heads for a model that Hearth serves, on the model's own answers.

`python -m scripts.train_medusa --model DIR` runs every stage, or goes on. See docs/medusa.md.
"""

from scripts.medusa.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
