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
