{{- /* Made by `make generate` from operator/src/disagg_operator/kube/rights.py. Do not edit. */ -}}
{{- define "disagg.rights.own" -}}
# one leader among replicas
- apiGroups: ["coordination.k8s.io"]
  resources: [leases]
  verbs: [get, create, update]
{{- end }}
{{- define "disagg.rights.namespaced" -}}
# the resources that users write
- apiGroups: ["inference.disagg.io"]
  resources: [disaggregatedinferences]
  verbs: [get, list, watch]
# their status
- apiGroups: ["inference.disagg.io"]
  resources: [disaggregatedinferences/status]
  verbs: [patch]
# owner references that block deletion, where the cluster enforces that right
- apiGroups: ["inference.disagg.io"]
  resources: [disaggregatedinferences/finalizers]
  verbs: [update]
# the counts of roles that others scale
- apiGroups: ["inference.disagg.io"]
  resources: [disaggregatedinferencescalers]
  verbs: [get, list, watch, create, patch, delete]
# what /scale tells of them
- apiGroups: ["inference.disagg.io"]
  resources: [disaggregatedinferencescalers/status]
  verbs: [patch]
# prefill, decode, master, metadata and router
- apiGroups: ["apps"]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
# images and template version of each resource, recorded
- apiGroups: ["apps"]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
# configuration, addresses, the router's identity
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# the router's right to see pods
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# one pod at a time in a drain
- apiGroups: ["policy"]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# closed by default
- apiGroups: ["networking.k8s.io"]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# autoscalers by metrics
- apiGroups: ["autoscaling"]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
# autoscalers by KEDA, where that CRD is there
- apiGroups: ["keda.sh"]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
# why pods do not start; also what the router's Role grants
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# what happened, for kubectl describe; why a pod's volumes hang
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
# metrics, where that CRD is there
- apiGroups: ["monitoring.coreos.com"]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# replicas that span nodes, where that CRD is there
- apiGroups: ["leaderworkerset.x-k8s.io"]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- define "disagg.rights.cluster" -}}
# kopf looks for the CRD to appear
- apiGroups: ["apiextensions.k8s.io"]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
# kopf lists namespaces to watch
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
