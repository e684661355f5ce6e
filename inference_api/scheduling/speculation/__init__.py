"""Several tokens a step: who guesses them, and how many guesses are worth their time."""
