"""The GPT: upstream's unmodified file, and our reference written from the definition."""
