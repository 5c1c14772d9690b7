"""What a job can import: this folder is on its PYTHONPATH, so that a script says `import amlkit` (see docs/kit.md)."""
