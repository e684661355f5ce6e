"""Trains Medusa heads for a served model on the model's own answers (self-distillation).

The stages run in this order, each in its own module: prompts (`prompts`), answers with the hidden
states of their positions (`answers`), training of the heads on these alone (`training`), a tree of
guesses (`judging`), the files (`export`) and the card (`card`). Cai et al. 2024, arXiv 2401.10774,
is where such heads come from. `hearth medusa` is the command over them.
"""
