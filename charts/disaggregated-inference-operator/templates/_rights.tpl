{{- define "disagg.rights.own" }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, update, patch]
{{- end }}
{{- define "disagg.rights.namespaced" }}
- apiGroups: [inference.disagg.io]
  resources: [disaggregatedinferences]
  verbs: [get, list, watch]
{{- end }}
{{- define "disagg.rights.cluster" }}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end }}
