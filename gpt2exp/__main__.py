"""`python -m gpt2exp` is the console script."""

from gpt2exp.main import main

main()
