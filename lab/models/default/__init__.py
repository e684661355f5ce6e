"""Builds `models/hearth-tiny`, the small chat model that Hearth serves when no other is named.

The stages run in this order, each in its own module: a corpus of own text (`documents`), a
tokenizer (`tokenizer`), training (`training`), export to the Hugging Face layout (`export`), the
judgement of the exported files (`evaluation`) and the model card (`card`).
`python -m lab.models.default` is the command over them.
"""
