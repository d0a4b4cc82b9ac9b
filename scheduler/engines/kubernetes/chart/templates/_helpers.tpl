{{/* Labels of every object; give (list . COMPONENT). */}}
{{- define "larder.labels" -}}
app.kubernetes.io/name: larder
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The URL of the allocator in the cluster, or those of all allocators, separated by commas. */}}
{{- define "larder.allocatorURL" -}}
{{- if .Values.allocator.etcd.endpoints -}}
{{- range $i := until (int .Values.allocator.etcd.replicas) }}{{ if $i }},{{ end -}}
https://{{ $.Release.Name }}-allocator-{{ $i }}.{{ $.Release.Name }}-allocators.{{ $.Release.Namespace }}.svc:7600
{{- end }}
{{- else -}}
https://{{ .Release.Name }}-allocator.{{ .Release.Namespace }}.svc:7600
{{- end }}
{{- end }}

{{/* Refuses an upgrade to allocators that have another state, unless the values say that this is meant, and one that
Kubernetes would refuse half-way. The Services tell where the state is while the StatefulSet is deleted. Where nothing
is installed, and for `helm template`, lookup finds nothing, and nothing is refused. */}}
{{- define "larder.checkState" -}}
{{- $wanted := ternary "etcd" "volume" (not (empty .Values.allocator.etcd.endpoints)) -}}
{{- $name := printf "%s-allocator" .Release.Name -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- $present := $wanted -}}
{{- if $set -}}
{{- $present = ternary "etcd" "volume" (eq $set.spec.serviceName (printf "%ss" $name)) -}}
{{- else if lookup "v1" "Service" .Release.Namespace $name -}}
{{- $present = ternary "etcd" "volume" (not (empty (lookup "v1" "Service" .Release.Namespace (printf "%ss" $name)))) -}}
{{- end -}}
{{- if ne $present $wanted -}}
{{- $where := dict "etcd" "etcd" "volume" "the allocator's volume" -}}
{{- if ne (toString .Values.allocator.switchStateTo) $wanted -}}
{{- fail (printf "Larder's state is in %s. With these values the allocator would begin with the state in %s, which lacks the jobs, pins and queue of now. Read \"Several allocators\" in docs/kubernetes.md, and set allocator.switchStateTo=%s if this is meant. Nothing was changed." (get $where $present) (get $where $wanted) $wanted) -}}
{{- else if $set -}}
{{- fail (printf "Kubernetes does not let the StatefulSet %s switch its state to %s. Delete it first: kubectl delete statefulset %s --namespace %s. Nothing was changed." $name (get $where $wanted) $name .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What containers without a reason for more may do. */}}
{{- define "larder.noRights" -}}
{{- include "larder.noRightsBut" (dict "type" "RuntimeDefault") }}
{{- end }}

{{/* The same with another seccomp profile. */}}
{{- define "larder.noRightsBut" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {{ toJson . }}
{{- end }}

{{/* Settings of every pod: how images are pulled. */}}
{{- define "larder.pull" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The labels of nodes with larderd: NAME=VALUE,... */}}
{{- define "larder.nodeSelector" -}}
{{- $labels := list -}}
{{- range $name, $value := .Values.node.nodeSelector -}}
{{- $labels = append $labels (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- join "," $labels -}}
{{- end }}

{{/* The allocator's file, if it decides where pods run. */}}
{{- define "larder.scheduler" -}}
[scheduler]
engine = "agent"
policy = {{ .Values.place.policy | quote }}
start_timeout = {{ .Values.place.startTimeout | quote }}
{{- if not .Values.place.nodes }}
nodes = "agent"
{{- end }}
{{- range $node, $gpus := .Values.place.nodes }}
[scheduler.node.{{ $node | quote }}]
gpus = {{ $gpus }}
{{- end }}
{{- range .Values.place.tenants }}
[scheduler.tenant.{{ . | quote }}]
{{- end }}
{{ .Values.place.config }}
{{- end }}
