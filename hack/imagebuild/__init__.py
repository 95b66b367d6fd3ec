"""Builds the container images with buildah, and the test model, each once for the same inputs."""
