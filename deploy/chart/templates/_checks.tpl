{{/* trivet.checks fails for values that cannot work together. */}}
{{- define "trivet.checks" -}}
{{- $embedded := .Values.etcd.embedded }}
{{- $servers := include "trivet.servers" . | fromYaml }}
{{- if not (or $embedded.enabled .Values.etcd.endpoints) }}
{{- fail "etcd: set etcd.endpoints, for example --set 'etcd.endpoints={https://10.0.0.1:2379}', or etcd.embedded.enabled" }}
{{- end }}
{{- if and $embedded.enabled .Values.etcd.endpoints }}
{{- fail "etcd: give etcd.endpoints or etcd.embedded.enabled, not both" }}
{{- end }}
{{- if $embedded.enabled }}
{{- if ne .Values.etcd.secretName "trivet-etcd" }}{{ fail "etcd.embedded uses the Secret trivet-etcd: leave etcd.secretName as it is" }}{{ end }}
{{- with get $servers "slicesvc" }}
{{- if or (not .managedBy) (eq .managedBy "endpointslice-controller.k8s.io") }}
{{- fail "etcd.embedded: its members find each other by EndpointSlices, which slicesvc can write only while etcd works. Keep kube-controller-manager's endpointslice controller, and set servers.slicesvc.enabled=false, or servers.slicesvc.managedBy to a value of your own" }}
{{- end }}
{{- end }}
{{- range $name, $server := $servers }}
{{- if eq $server.mode "StaticPod" }}{{ fail (printf "etcd.embedded: %s as a StaticPod has the DNS of its machine, which does not know etcd's Pods" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.agent.kubeletEndpoint (ne .Values.agent.mode "StaticPod") }}
{{- fail "agent.kubeletEndpoint needs agent.mode=StaticPod: a kubelet starts before it knows a DaemonSet" }}
{{- end }}
{{- range $name, $server := $servers }}
{{- if and $server.dryRun (hasKey $server.flags "dry-run") }}{{ fail (printf "servers.%s: give dryRun or flags.dry-run, not both" $name) }}{{ end }}
{{- range $server.dryRun }}
{{- if has (printf "-%s" .) (splitList "," $server.loops) }}
{{- if not (index $.Values.servers $name).loops }}
{{- fail (printf "servers.%s.dryRun: %s needs a kube-apiserver beside it: set servers.%s.mode to StaticPod, or leave it out" $name . $name) }}
{{- end }}
{{- fail (printf "servers.%s.loops: %q has no %s, which dryRun compares. A loop in dry run writes nothing: set servers.%s.loops to \"\", or leave %s out of dryRun" $name $server.loops . $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $names := .Values.certificates.dnsNames }}
{{- if not (hasKey $servers $name) }}{{ fail (printf "certificates.dnsNames: %s is not enabled" $name) }}{{ end }}
{{- end }}
{{- /* lookup finds objects in a cluster only, so helm template passes. */}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace | default dict }}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" $namespace }}
{{- if and (eq (include "trivet.needsMachine" .) "true") (has $level (list "baseline" "restricted")) }}
{{- fail (printf "agents and static Pods need the network of their machine: kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged. The chart's admission policy takes the machine from all other Pods" .Release.Namespace) }}
{{- end }}
{{- if and .Values.staticPods.print $namespace }}
{{- fail "staticPods.print prints manifests for kubelets, by helm template; it installs nothing" }}
{{- end }}
{{- end }}
