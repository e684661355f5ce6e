"""What the proxy adds."""
