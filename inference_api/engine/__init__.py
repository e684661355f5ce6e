"""The engine computes and samples the next tokens. Only the decode thread calls it."""
