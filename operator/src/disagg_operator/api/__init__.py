"""The custom resource as types: the one source of the CRD, its defaults and its reference page. No IO."""
