"""The CRD can be installed in every way that people do it."""

from demo.kubectl import Kubectl


def test_the_resource_is_served(kubectl: Kubectl) -> None:
    out = kubectl.run("api-resources", "--api-group=inference.disagg.io", "-o", "wide")
    row = next(line.split() for line in out.splitlines() if line.startswith("disaggregatedinferences"))
    assert row[1:5] == ["dinf", "inference.disagg.io/v1alpha1", "true", "DisaggregatedInference"]
    assert row[-1] == "inference", "its category"
