{{/* trivet.args prints the arguments of a server. The arguments are the root, the name, the server of trivet.servers, and the
     host of the admin server. */}}
{{- define "trivet.args" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}{{ $server := index . 2 }}{{ $adminHost := index . 3 -}}
- --listen=:{{ $server.ports.grpc }}
- --admin-listen={{ $adminHost }}:{{ $server.ports.admin }}
{{- if eq $name "gateway" }}
- --http-listen=:{{ $server.ports.http }}
{{- end }}
{{- if eq $name "bootstrapsvc" }}
{{- if eq $server.mode "StaticPod" }}
- --apiserver-url=https://127.0.0.1:{{ $server.apiserverPort }}
- --apiserver-advertise-address=$(TRIVET_ADVERTISE_ADDRESS)
# A restart of this Pod is no stop of kube-apiserver, whose address then stays published.
- --keep-ready-address
{{- else }}
- --apiserver-port={{ $server.apiserverPort }}
{{- end }}
{{- end }}
{{- if and (eq $name "leasesvc") (ne $root.Release.Namespace "trivet-system") }}
- --agent-service-accounts={{ $root.Release.Namespace }}/trivet-agent
{{- end }}
{{- with $server.managedBy }}
- {{ printf "--managed-by=%s" . | quote }}
{{- end }}
{{- range $flag, $value := $server.flags }}
{{- /* Helm reads a number as a float, which JSON alone prints in full. */}}
- {{ printf "--%s=%s" $flag (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end }}

{{- define "trivet.ports" -}}
- name: grpc
  containerPort: {{ .grpc }}
- name: admin
  containerPort: {{ .admin }}
{{- with .http }}
- name: http
  containerPort: {{ . }}
{{- end }}
{{- end }}

{{/* trivet.probes prints the probes of a server; the argument is their host, empty for the Pod's address. */}}
{{- define "trivet.probes" -}}
# Liveness fails only when a loop hangs; a lost etcd or kube-apiserver is no reason to restart.
livenessProbe:
  httpGet:
    {{- with . }}
    host: {{ . }}
    {{- end }}
    path: /livez
    port: admin
    scheme: HTTPS
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
# A standby is ready, too: it can take over.
readinessProbe:
  httpGet:
    {{- with . }}
    host: {{ . }}
    {{- end }}
    path: /readyz
    port: admin
    scheme: HTTPS
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{- define "trivet.mounts" -}}
- name: tls
  mountPath: /etc/trivet/tls
  readOnly: true
- name: trust
  mountPath: /etc/trivet/trust
  readOnly: true
- name: etcd
  mountPath: /etc/trivet/etcd
  readOnly: true
{{- end }}

{{/* trivet.files prints the settings that name files, which are the same in all servers. */}}
{{- define "trivet.files" -}}
TRIVET_ETCD_CA_FILE: /etc/trivet/etcd/ca.crt
TRIVET_ETCD_CERT_FILE: /etc/trivet/etcd/tls.crt
TRIVET_ETCD_KEY_FILE: /etc/trivet/etcd/tls.key
TRIVET_TLS_CERT_FILE: /etc/trivet/tls/tls.crt
TRIVET_TLS_KEY_FILE: /etc/trivet/tls/tls.key
TRIVET_CLIENT_CA_FILE: /etc/trivet/trust/client-ca.crt
TRIVET_PEER_CA_FILE: /etc/trivet/trust/ca.crt
TRIVET_LOG_FORMAT: {{ .Values.log.format }}
{{- with .Values.log.level }}
TRIVET_LOG_LEVEL: {{ . }}
{{- end }}
{{- end }}
