{{/* trivet.certsPod prints the Pod of the Job and of the CronJob; the arguments are the root and those of trivet. */}}
{{- define "trivet.certsPod" -}}
{{- $root := index . 0 -}}
metadata:
  labels:
    app.kubernetes.io/name: certs
    app.kubernetes.io/part-of: trivet
spec:
  serviceAccountName: certs
  restartPolicy: OnFailure
  enableServiceLinks: false
  {{- with include "trivet.pullSecrets" $root | trim }}{{ . | nindent 2 }}{{ end }}
  securityContext:
    {{- include "trivet.podSecurity" $root | nindent 4 }}
  {{- with include "trivet.placement" $root | trim }}{{ . | nindent 2 }}{{ end }}
  containers:
    - name: certs
      image: {{ include "trivet.image" $root }}
      {{- with $root.Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      command: [/trivet]
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

{{/* trivet.certificate prints a Certificate of cert-manager; one with DNS names is also a server's. */}}
{{- define "trivet.certificate" }}
{{- $root := index . 0 }}{{ $leaf := index . 1 }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $leaf.name }}
  namespace: {{ $root.Release.Namespace }}
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
