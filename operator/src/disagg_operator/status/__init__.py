"""Pure judgement: what to report."""
