"""What is checked on a machine with a GPU, when there is one: fourteen minutes, one run."""
