"""The demo: from a bare machine to an answered question, and back. The end-to-end tests stand on the same steps."""
