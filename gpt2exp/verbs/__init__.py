"""One lazily imported module a verb: `gpt2exp <verb> ...` calls its `main(arguments) -> exit status`."""
