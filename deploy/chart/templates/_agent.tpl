{{- define "trivet.agentEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: GOMEMLIMIT
  value: {{ .Values.agent.goMemoryLimit | quote }}
{{- end }}

{{- define "trivet.agentProbes" -}}
livenessProbe:
  httpGet:
    host: 127.0.0.1
    path: /livez
    port: 7605
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    host: 127.0.0.1
    path: /readyz
    port: 7605
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}
