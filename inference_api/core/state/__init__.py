"""What rows remember: pages, who holds them, and which beginnings of prompts they are."""
