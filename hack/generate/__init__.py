"""Files that are made from code. Each module has `outputs(root) -> {path: text}`; the command writes or compares."""
