"""What several benches, peers and demos use: servers, their answers, shares of a core."""
