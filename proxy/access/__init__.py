"""Who may come in and how much: tokens, roles, policies, limits, usage, the audit log."""
