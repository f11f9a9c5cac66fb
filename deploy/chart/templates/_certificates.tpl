{{/* trivet.certsPod prints the Pod of the Job and of the CronJob; the arguments are the root and those of trivet. */}}
{{- define "trivet.certsPod" -}}
{{- $root := index . 0 -}}
metadata:
  {{- include "trivet.podMetadata" (list $root "certs" dict) | nindent 2 }}
spec:
  serviceAccountName: certs
  restartPolicy: OnFailure
  {{- include "trivet.podSpec" (list $root $root.Values.pods) | nindent 2 }}
  containers:
    - name: certs
      {{- include "trivet.container" (list $root "/trivet") | nindent 6 }}
      args:
        {{- toYaml (index . 1) | nindent 8 }}
      resources:
        requests:
          cpu: 10m
          memory: 32Mi
        limits:
          memory: 128Mi
      securityContext:
        {{- include "trivet.containerSecurity" $root | nindent 8 }}
{{- end }}

{{/* trivet.serviceNames prints the DNS names of a Service; the arguments are the root and its name. */}}
{{- define "trivet.serviceNames" -}}
{{- $root := index . 0 }}{{ $name := index . 1 -}}
- {{ $name }}
- {{ $name }}.{{ $root.Release.Namespace }}
- {{ $name }}.{{ $root.Release.Namespace }}.svc
- {{ $name }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.cluster.domain }}
- localhost
{{- end }}

{{/* trivet.certificate prints a Certificate of cert-manager; one with dnsNames is also a server's. */}}
{{- define "trivet.certificate" }}
{{- $root := index . 0 }}{{ $leaf := index . 1 }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $leaf.name }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "trivet.labels" $root | nindent 4 }}
spec:
  secretName: {{ $leaf.secret }}
  commonName: {{ $leaf.user }}
  {{- with $leaf.group }}
  subject:
    organizations: [{{ . }}]
  {{- end }}
  {{- with $leaf.dnsNames }}
  dnsNames:
    {{- toYaml . | nindent 4 }}
  ipAddresses: [127.0.0.1, "::1"]
  usages: [digital signature, server auth, client auth]
  {{- else }}
  {{- with $leaf.clientNames }}
  dnsNames:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  usages: [digital signature, client auth]
  {{- end }}
  duration: 8760h
  renewBefore: 2920h
  privateKey:
    algorithm: ECDSA
    size: 256
    rotationPolicy: Always
  issuerRef:
    {{- toYaml $leaf.issuer | nindent 4 }}
{{- end }}
