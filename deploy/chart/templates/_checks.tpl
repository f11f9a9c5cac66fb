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
{{- with get $servers "slicesvc" }}
{{- if or (not .managedBy) (eq .managedBy "endpointslice-controller.k8s.io") }}
{{- fail "etcd.embedded: its members find each other by EndpointSlices, which slicesvc can write only while etcd works. Keep kube-controller-manager's endpointslice controller, and set servers.slicesvc.enabled=false, or servers.slicesvc.managedBy to a value of your own" }}
{{- end }}
{{- end }}
{{- range $name, $server := $servers }}
{{- if eq $server.mode "StaticPod" }}{{ fail (printf "etcd.embedded: %s as a StaticPod has the DNS of its machine, which does not know etcd's Pods" $name) }}{{ end }}
{{- end }}
{{- if .Values.pods.controlPlaneOnly }}{{ include "trivet.etcdPlacement" . }}{{ end }}
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
{{- $certificates := .Values.certificates }}
{{- if eq $certificates.source "CertManager" }}
{{- if eq (empty $certificates.issuerRef) (not $certificates.authorityInCluster) }}
{{- fail "certificates: give issuerRef, an Issuer for Trivet alone whose key is outside of the cluster, or authorityInCluster=true, whose key is Secret trivet-ca; not both" }}
{{- end }}
{{- if and (eq ($certificates.issuerRef.kind | toString) "ClusterIssuer") (not $certificates.acceptSharedIssuer) }}
{{- fail (printf "certificates.issuerRef: each namespace may use ClusterIssuer %s, and with a certificate of group trivet:gateways a program names any caller. Use an Issuer of namespace %s for Trivet alone, or limit the ClusterIssuer by a policy and set certificates.acceptSharedIssuer=true" $certificates.issuerRef.name .Release.Namespace) }}
{{- end }}
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

{{/* trivet.etcdPlacement fails if a member of etcd.embedded would wait for a control-plane node, or for one that reaches its
     volume. lookup finds objects in a cluster only. */}}
{{- define "trivet.etcdPlacement" -}}
{{- $etcd := .Values.etcd.embedded }}
{{- $nodes := (lookup "v1" "Node" "" "").items }}
{{- $machines := list }}
{{- range $nodes }}
{{- if hasKey (.metadata.labels | default dict) "node-role.kubernetes.io/control-plane" }}{{ $machines = append $machines .metadata.labels }}{{ end }}
{{- end }}
{{- $needed := ternary (int $etcd.members) 1 (eq $etcd.antiAffinity "required") }}
{{- if and $nodes (lt (len $machines) $needed) }}
{{- fail (printf "etcd.embedded: its Pods run on control-plane nodes and need %d, and the cluster shows %d. Set etcd.embedded.antiAffinity=preferred to put several members on one node, or etcd.embedded.members=1 for a new etcd, or pods.controlPlaneOnly=false, after docs/security.md" $needed (len $machines)) }}
{{- end }}
{{- range until (int $etcd.members) }}
{{- $claim := printf "data-etcd-%d" . }}
{{- $name := dig "spec" "volumeName" "" (lookup "v1" "PersistentVolumeClaim" $.Release.Namespace $claim | default dict) }}
{{- $volume := dict }}
{{- if $name }}{{ $volume = lookup "v1" "PersistentVolume" "" $name | default dict }}{{ end }}
{{- with dig "spec" "nodeAffinity" "required" "nodeSelectorTerms" list $volume }}
{{- $reached := false }}
{{- range $term := . }}
{{- range $labels := $machines }}
{{- $fits := true }}
{{- range $term.matchExpressions }}
{{- if and (eq .operator "In") (not (has (get $labels .key) .values)) }}{{ $fits = false }}{{ end }}
{{- end }}
{{- if $fits }}{{ $reached = true }}{{ end }}
{{- end }}
{{- end }}
{{- if not $reached }}
{{- fail (printf "etcd.embedded: no control-plane node reaches volume %s of claim %s. Set pods.controlPlaneOnly=false, after docs/security.md, or replace the members one by one, after docs/install.md" $name $claim) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
