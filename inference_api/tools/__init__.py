"""Tool calls and thoughts: how models write them in answers, and how templates show them."""
