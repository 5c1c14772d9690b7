"""Where a job's worker runs: each launcher submits, polls and cancels; the state always comes from job.json."""
