"""Access control: tokens, roles, policies, limits and budgets."""
