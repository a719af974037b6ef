"""Layer spectra: immutable snapshots, a process of its own that fits them, tables and plots."""
