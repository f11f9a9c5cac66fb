{{/* trivet.staticPod prints the static Pod of a server if its mode is StaticPod; the arguments are the root and the name. A
     static Pod may refer to no Secret, ConfigMap or ServiceAccount, so certificates come from folders of the machine. */}}
{{- define "trivet.staticPod" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}
{{- $server := get (include "trivet.servers" $root | fromYaml) $name }}
{{- if and $root.Values.staticPods.print $server (eq (get $server "mode" | toString) "StaticPod") }}
{{- $sized := include "trivet.resources" (list $root $name) | fromYaml -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace | quote }}
  {{- include "trivet.podMetadata" (list $root $name dict) | nindent 2 }}
spec:
  hostNetwork: true
  # No admission resolves the class of a static Pod, and the kubelet stops Pods in the order of the number.
  priority: 2000001000
  priorityClassName: system-node-critical
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ ternary 45 30 (eq $name "bootstrapsvc") }}
  securityContext:
    {{- include "trivet.podSecurity" false | nindent 4 }}
  containers:
    - name: server
      image: {{ include "trivet.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy | default "IfNotPresent" }}
      command: [/{{ $name }}]
      args:
        {{- include "trivet.args" (list $root $name $server "127.0.0.1") | nindent 8 }}
      ports:
        {{- include "trivet.ports" $server.ports | nindent 8 }}
      env:
        - name: GOMEMLIMIT
          value: {{ $sized.goMemoryLimit | quote }}
        - name: TRIVET_CLUSTER
          value: {{ $root.Values.cluster.name | quote }}
        - name: TRIVET_ETCD_ENDPOINTS
          value: {{ join "," ($root.Values.staticPods.etcdEndpoints | default $root.Values.etcd.endpoints) | quote }}
        - name: TRIVET_KUBECONFIG
          value: /etc/trivet/tls/kubeconfig
        {{- range $setting, $value := include "trivet.files" $root | fromYaml }}
        - name: {{ $setting }}
          value: {{ $value | quote }}
        {{- end }}
        {{- with $server.loops }}
        - name: TRIVET_LOOPS
          value: {{ . | quote }}
        {{- end }}
        {{- with $server.dryRun }}
        - name: TRIVET_DRY_RUN
          value: {{ join "," . | quote }}
        {{- end }}
        - name: TRIVET_ADVERTISE_ADDRESS
          valueFrom:
            fieldRef:
              fieldPath: status.hostIP
      resources:
        {{- toYaml $sized.resources | nindent 8 }}
      securityContext:
        {{- include "trivet.containerSecurity" $root | nindent 8 }}
      {{- include "trivet.probes" "127.0.0.1" | nindent 6 }}
      volumeMounts:
        {{- include "trivet.mounts" $root | nindent 8 }}
  volumes:
    # tls.crt and tls.key of this server, and kubeconfig with user trivet:{{ $name }} and its client certificate.
    - name: tls
      hostPath:
        path: /etc/trivet/{{ $name }}
        type: DirectoryOrCreate
    # ca.crt has the authorities of Trivet's own servers; client-ca.crt has these and those of other clients.
    - name: trust
      hostPath:
        path: /etc/trivet/trust
        type: DirectoryOrCreate
    # ca.crt, tls.crt and tls.key of user trivet:{{ $name }} of etcd.
    - name: etcd
      hostPath:
        path: /etc/trivet/etcd/{{ $name }}
        type: DirectoryOrCreate
{{- end }}
{{- end }}
