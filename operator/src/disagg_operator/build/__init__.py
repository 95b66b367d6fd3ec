"""Pure builders: from a DisaggregatedInference and the build inputs to child manifests. One file per child kind."""
