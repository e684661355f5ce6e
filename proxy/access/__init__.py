"""Access: tokens, roles, policies, limits, usage, the audit log."""
