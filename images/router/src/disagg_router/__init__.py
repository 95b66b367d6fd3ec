"""The front of a DisaggregatedInference: runs prompts through prefill, then decode, or through decode alone."""
