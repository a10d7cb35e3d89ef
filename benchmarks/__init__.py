"""What the monitor costs, beside what the same machine does without it, in the same run."""
