"""Makes the embedded default model: corpus, tokenizer, training, export, evaluation and card.

`python scripts/train_default_model.py all` runs every stage; training resumes from its last
checkpoint.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from scripts.default_model.cli import main

    raise SystemExit(main())
