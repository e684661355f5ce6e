"""Tools that benches, peers and demos share: servers, their answers, shares of a core."""
