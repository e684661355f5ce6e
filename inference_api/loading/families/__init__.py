"""Model families: how each one's config.json is read, and how it names its tensors."""
