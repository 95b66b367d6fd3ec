{{/* Name of the chart's part of object names. */}}
{{- define "disagg.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Full name: 52 characters at most, so that suffixes and pod hashes still fit in 63. */}}
{{- define "disagg.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "disagg.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "disagg.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Name of cluster-scoped objects: with the namespace, so that one release name can be used in two namespaces. */}}
{{- define "disagg.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "disagg.fullname" .) -}}
{{- end }}

{{/* Labels that select the operator's pods: few, and never changed. */}}
{{- define "disagg.selectorLabels" -}}
app.kubernetes.io/name: {{ include "disagg.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "disagg.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "disagg.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "disagg.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "disagg.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* `<registry>/<name>:<appVersion>`, or nothing without a registry. Takes the root and the name. */}}
{{- define "disagg.defaultImage" -}}
{{- with .root.Values.registry -}}
{{- printf "%s/%s:%s" . $.name $.root.Chart.AppVersion -}}
{{- end -}}
{{- end }}

{{/* The operator's image. */}}
{{- define "disagg.image" -}}
{{- $image := .Values.image -}}
{{- if $image.ref -}}
{{- $image.ref -}}
{{- else -}}
{{- $registry := required "no operator image: set registry (such as registry.example.com/team, where the images of `make images` were pushed) or image.ref (a whole reference)" .Values.registry -}}
{{- if $image.digest -}}
{{- printf "%s/%s@%s" $registry $image.name $image.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry $image.name (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "disagg.engineCudaImage" -}}
{{- default (include "disagg.defaultImage" (dict "root" . "name" "disagg/engine-cuda")) .Values.images.engine.cuda -}}
{{- end }}

{{- define "disagg.engineCpuImage" -}}
{{- default (include "disagg.defaultImage" (dict "root" . "name" "disagg/engine-cpu")) .Values.images.engine.cpu -}}
{{- end }}

{{- define "disagg.storeImage" -}}
{{- $image := default (include "disagg.defaultImage" (dict "root" . "name" "disagg/store")) .Values.images.store -}}
{{- required "no store image: set registry or images.store (a whole reference)" $image -}}
{{- end }}

{{- define "disagg.routerImage" -}}
{{- $image := default (include "disagg.defaultImage" (dict "root" . "name" "disagg/router")) .Values.images.router -}}
{{- required "no router image: set registry or images.router (a whole reference)" $image -}}
{{- end }}

{{/*
Who has the CRD: "free" (not there, or no cluster to ask), "ours", or a sentence naming the other owner. Takes the root
and the CRD's name. Helm refuses to install over an object that it does not own, so the chart leaves such a CRD alone.
*/}}
{{- define "disagg.crdOwner" -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name -}}
{{- if not $found -}}
free
{{- else -}}
{{- $annotations := default dict $found.metadata.annotations -}}
{{- $labels := default dict $found.metadata.labels -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if and (eq $release .root.Release.Name) (eq $namespace .root.Release.Namespace) (eq (get $labels "app.kubernetes.io/managed-by") "Helm") -}}
ours
{{- else if and $release $namespace -}}
release {{ $release }} in namespace {{ $namespace }}
{{- else -}}
somebody without Helm
{{- end -}}
{{- end -}}
{{- end }}
