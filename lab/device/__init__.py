"""What is checked on a machine with a GPU, when there is one: thirteen minutes, one run."""
