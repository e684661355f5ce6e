"""Makes the embedded default model: corpus, tokenizer, training, export, evaluation and card.

`python scripts/train_default_model.py all` runs every stage; training resumes from its last
checkpoint.
"""

from scripts.default_model.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
