{{/* trivet.podMetadata prints the metadata of every Pod; the arguments are the root, the name, and further annotations. */}}
{{- define "trivet.podMetadata" -}}
labels:
  app.kubernetes.io/name: {{ index . 1 }}
  app.kubernetes.io/part-of: trivet
{{- with merge (dict) (index . 2) ((index . 0).Values.pods.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* trivet.podSpec prints what every Pod template has in common; the arguments are the root, and the values of pods, or those of
     the agents. */}}
{{- define "trivet.podSpec" -}}
{{- $root := index . 0 }}{{ $pods := index . 1 -}}
enableServiceLinks: false
{{- with $pods.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "trivet.podSecurity" $root.Values.pods.anyUser | nindent 2 }}
  {{- if not $root.Values.pods.anyUser }}
  fsGroup: 65532
  {{- end }}
nodeSelector:
  {{- toYaml (merge (dict "kubernetes.io/os" "linux") ($pods.nodeSelector | default dict)) | nindent 2 }}
{{- $affinity := deepCopy ($pods.affinity | default dict) }}{{ $tolerations := $pods.tolerations | default list }}
{{- if $pods.controlPlaneOnly }}
{{- /* Terms are alternatives, so each of them needs the label. */}}
{{- $label := dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists" }}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" dict $affinity }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $terms = append $terms (merge (dict "matchExpressions" (append (.matchExpressions | default list) $label)) .) }}
{{- end }}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms))) }}
{{- $tolerations = append $tolerations (pick $label "key" "operator") }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* trivet.podSecurity is the context of every Pod but that of a static agent; the argument says whether the cluster chooses the
     user. */}}
{{- define "trivet.podSecurity" -}}
runAsNonRoot: true
{{- if not . }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "trivet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
