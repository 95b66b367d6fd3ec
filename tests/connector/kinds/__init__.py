"""Real engines with a tiny model of each kind of attention."""
