"""Pure decisions: what to change."""
