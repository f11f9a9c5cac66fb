{{/* trivet.labels prints the labels of an object; the argument is the root. */}}
{{- define "trivet.labels" -}}
app.kubernetes.io/part-of: trivet
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "trivet.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* trivet.container prints image and command of a container of ours; the arguments are the root and the command. */}}
{{- define "trivet.container" -}}
{{- $root := index . 0 -}}
image: {{ include "trivet.image" $root | quote }}
{{- with $root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
command: [{{ index . 1 }}]
{{- end }}

{{/* trivet.servers prints the enabled servers by name: their values, their ports, their loops, and those in dry run. */}}
{{- define "trivet.servers" -}}
{{- $values := .Values }}
{{- $found := dict }}
{{- $ports := dict "bootstrapsvc" (dict "grpc" 7602 "admin" 7612) "gateway" (dict "grpc" 7600 "admin" 7610 "http" 7680)
      "leasesvc" (dict "grpc" 7601 "admin" 7611) "slicesvc" (dict "grpc" 7603 "admin" 7613) }}
{{- range $name, $server := .Values.servers }}
{{- if $server.enabled }}
{{- $loops := list }}
{{- if eq $name "bootstrapsvc" }}
{{- /* A Deployment has no kube-apiserver beside it to probe and publish. */}}
{{- if eq $server.mode "Deployment" }}{{ $loops = concat $loops (list "-apiserver-probe" "-kubernetes-endpoints") }}{{ end }}
{{- /* The audit reads kube-apiserver's keys, which an etcd for Trivet alone does not have. */}}
{{- if $values.etcd.embedded.enabled }}{{ $loops = append $loops "-allocation-audit" }}{{ end }}
{{- end }}
{{- if $server.nodeHealth }}{{ $loops = append $loops "node-health" }}{{ end }}
{{- if $server.taintEviction }}{{ $loops = append $loops "taint-eviction" }}{{ end }}
{{- if $server.endpointSliceMirroring }}{{ $loops = append $loops "endpointslice-mirroring" }}{{ end }}
{{- $chosen := ternary (prepend $loops "*" | join ",") "" (gt (len $loops) 0) }}
{{- $_ := set $found $name (merge (dict "ports" (get $ports $name) "loops" ($server.loops | default $chosen) "dryRun" ($server.dryRun | default list)) $server) }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* trivet.resources prints resources and GOMEMLIMIT of a server; the arguments are the root and its name. No CPU limit: a
     throttled server cannot renew its term in time. */}}
{{- define "trivet.resources" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}
{{- $server := get $root.Values.servers $name }}
{{- $large := has $name (list "leasesvc" "slicesvc") }}
{{- $small := list "20m" "64Mi" "256Mi" "230MiB" }}
{{- $presets := dict
      "small" (ternary $small (list "10m" "64Mi" "128Mi" "115MiB") $large)
      "medium" (ternary (list "100m" "64Mi" "1Gi" "900MiB") (list "50m" "64Mi" "256Mi" "230MiB") $large)
      "large" (ternary (list "500m" "512Mi" "4Gi" "3600MiB") (list "100m" "192Mi" "1Gi" "900MiB") $large) }}
{{- $preset := get $presets $root.Values.size }}
{{- if $server.resources }}
goMemoryLimit: {{ required (printf "servers.%s.resources needs servers.%s.goMemoryLimit: nine tenths of the memory limit" $name $name) $server.goMemoryLimit }}
resources:
  {{- toYaml $server.resources | nindent 2 }}
{{- else }}
goMemoryLimit: {{ $server.goMemoryLimit | default (index $preset 3) }}
resources:
  requests:
    cpu: {{ index $preset 0 }}
    memory: {{ index $preset 1 }}
  limits:
    memory: {{ index $preset 2 }}
{{- end }}
{{- end }}

{{/* trivet.etcdEndpoints prints the endpoints that Deployments use. */}}
{{- define "trivet.etcdEndpoints" -}}
{{- if .Values.etcd.embedded.enabled -}}
{{- $members := list }}
{{- range until (int .Values.etcd.embedded.members) }}
{{- $members = append $members (printf "https://etcd-%d.etcd.%s.svc:2379" . $.Release.Namespace) }}
{{- end }}
{{- join "," $members }}
{{- else -}}
{{- join "," .Values.etcd.endpoints }}
{{- end }}
{{- end }}

{{/* trivet.etcdClientName is the name by which the members of etcd.embedded know their clients. */}}
{{- define "trivet.etcdClientName" -}}
client.etcd.{{ .Release.Namespace }}.svc
{{- end }}

{{/* trivet.needsMachine is "true" if Pods in the namespace have the network of their machine. */}}
{{- define "trivet.needsMachine" -}}
{{- $found := ne .Values.agent.mode "None" }}
{{- range $name, $server := include "trivet.servers" . | fromYaml }}
{{- if eq $server.mode "StaticPod" }}{{ $found = true }}{{ end }}
{{- end }}
{{- $found }}
{{- end }}

{{/* trivet.objects returns the objects of a manifest of deploy/ as JSON, in the namespace and with the labels of the release.
     The arguments are the root and the path below deploy/. */}}
{{- define "trivet.objects" -}}
{{- $root := index . 0 }}{{ $path := printf "files/%s" (index . 1) }}
{{- $text := $root.Files.Get $path }}
{{- if not $text }}{{ fail (printf "the chart lacks %s" $path) }}{{ end }}
{{- $objects := list }}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $path $object.Error) }}{{ end }}
{{- $object = toJson $object | replace "trivet-system" $root.Release.Namespace | fromJson }}
{{- $metadata := $object.metadata }}
{{- $_ := set $metadata "labels" (merge (include "trivet.labels" $root | fromYaml) ($metadata.labels | default dict)) }}
{{- $objects = append $objects $object }}
{{- end }}
{{- toJson $objects }}
{{- end }}

{{/* trivet.file prints the objects of a manifest of deploy/ as they are. */}}
{{- define "trivet.file" -}}
{{- range include "trivet.objects" . | fromJsonArray }}
---
{{ toYaml . }}
{{- end }}
{{- end }}
