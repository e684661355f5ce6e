"""Trains Medusa heads for a served model on the model's own answers (self-distillation).

The stages run in this order, each in its own module: prompts (`prompts`), answers with the hidden
states of their positions (`answers`), training of the heads on these alone (`training`), the tree
of guesses (`judging`), the files (`export`) and the card (`card`). The heads are those of Cai et
al. 2024, arXiv 2401.10774. `hearth medusa` runs all stages.
"""
