"""The training job: run it, record it, judge what it measured."""
