"""The local Kubernetes: built from source, run as plain processes on one machine, and removed without a trace."""
