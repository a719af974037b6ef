"""Our numbers against independent executors: upstream's script first."""
