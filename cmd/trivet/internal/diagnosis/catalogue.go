package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Check is an entry of the catalogue.
type Check struct {
	// ID is stable. Scripts and the documentation use it.
	ID string
	// Pre means that the check belongs to `trivet check --pre`.
	Pre      bool
	Category string
	// Reads says where the facts come from.
	Reads string
	// Warning and Failed say when the result is ‼ and ×; empty if it never is.
	Warning, Failed string
	// Action says what to do.
	Action string
}

// The categories, in the order of the output.
const (
	categoryKubernetes   = "Kubernetes"
	categoryEtcd         = "etcd"
	categoryUpstream     = "upstream's loops"
	categoryMachine      = "this machine"
	categoryServices     = "services"
	categoryCertificates = "certificates"
	categoryRights       = "rights"
	categoryWriters      = "writers"
	categoryAgents       = "agents"
)

// Checks returns the checks before an install, or the ones after it, in the order of the output.
func Checks(pre bool) []Check {
	return slices.DeleteFunc(Catalogue(), func(c Check) bool { return c.Pre != pre })
}

// Page returns the address of the documentation of a check, below the repository.
func Page(id string) string { return "docs/checks.md#" + id }

// Document returns the sections of all checks as Markdown.
func Document() string {
	var text strings.Builder
	for _, pre := range []bool{true, false} {
		title := map[bool]string{true: "Before the install", false: "After the install"}[pre]
		fmt.Fprintf(&text, "## %s\n", title)
		for _, c := range Checks(pre) {
			fmt.Fprintf(&text, "\n### %s\n\nReads %s.\n\n| result | when |\n|---|---|\n", c.ID, c.Reads)
			fmt.Fprintf(&text, "| ‼ | %s |\n| × | %s |\n\n%s.\n", cmp.Or(c.Warning, "only if it could not be determined"), cmp.Or(c.Failed, "never"), c.Action)
		}
		if pre {
			text.WriteString("\n")
		}
	}
	return text.String()
}

// Catalogue returns all checks.
func Catalogue() []Check { return append(preChecks(), afterChecks()...) }

func preChecks() []Check {
	checks := []Check{
		{
			ID: "pre-kube-version", Category: categoryKubernetes,
			Reads: "`/version` of kube-apiserver", Warning: "the version is not the tested one",
			Action: "Read the limits in README.md, and try Trivet on a test cluster of this version first",
		},
		{
			ID: "pre-kube-apis", Category: categoryKubernetes,
			Reads: "the API groups of kube-apiserver", Warning: "`ipaddresses` is not served, as up to Kubernetes 1.32",
			Failed: "a required API is not served",
			Action: "Remove the API from `--runtime-config` of kube-apiserver, or update Kubernetes",
		},
		{
			ID: "pre-rights", Category: categoryKubernetes,
			Reads:   "a SelfSubjectAccessReview for each kind of object in deploy/ and for the verbs of a server-side apply",
			Warning: "kube-apiserver denies a right that only options of the chart need, or the right to `bind` and `escalate` roles, so that you may only give rights that you have yourself",
			Failed:  "kube-apiserver denies a right that every install needs",
			Action:  "Install as a member of `system:masters` or with ClusterRole `cluster-admin`",
		},
		{
			ID: "pre-pods", Category: categoryKubernetes,
			Reads:   "the answer of kube-apiserver to a Pod of each kind of deploy/ in the namespace of Trivet, created in dry run",
			Warning: "it refuses the Pods of agents, which are an option, or asks for the ResourceQuota that an install makes",
			Failed:  "it refuses another Pod: the install would succeed, and no Pod would come",
			Action:  "Read the refusal, and change the namespace, the policy or the values; the check needs the namespace",
		},
		{
			ID: "pre-clock", Category: categoryKubernetes,
			Reads:   "the `Date` header of kube-apiserver, and the clock of this machine",
			Warning: "the clocks differ by more than 2 s", Failed: "they differ by more than a minute, so that new certificates are refused",
			Action: "Let a time service set the clock on both machines",
		},
		{
			ID: "pre-etcd-members", Category: categoryEtcd,
			Reads:   "the status of each member in `--etcd-endpoints`",
			Warning: "a member does not answer, or etcd is older than 3.5", Failed: "a member has an alarm, or each of them refuses the connection",
			Action: "Check `--etcd-endpoints` and the three files of the client, then etcd itself",
		},
		{
			ID: "pre-etcd-transactions", Category: categoryEtcd,
			Reads:   "a transaction on the key `/trivet/CLUSTER/check/…`, which has a lease of 10 s and is removed at once; the rights of the client to the keys below `/registry` that bootstrapsvc reads",
			Warning: "it takes more than 500 ms, or the client lacks such a right", Failed: "etcd denies it, or the result is not that of etcd v3, as with kine",
			Action: "Give Trivet an etcd with v3 transactions and leases, and the role of docs/deployment.md",
		},
		{
			ID: "pre-etcd-certificates", Category: categoryEtcd,
			Reads:   "`--etcd-ca-file` and `--etcd-cert-file`",
			Warning: "a certificate is in the last tenth of its life", Failed: "a certificate has expired, or a file cannot be used",
			Action: "Issue the certificate again; Trivet reads replaced files without a restart",
		},
		{
			ID: "pre-upstream-manager", Category: categoryUpstream,
			Reads:   "the Lease of kube-controller-manager",
			Warning: "no replica renews it", Action: "Start kube-controller-manager: Trivet replaces some of its loops, not the program",
		},
		{
			ID: "pre-upstream-slices", Category: categoryUpstream,
			Reads:   "the managed fields of all EndpointSlices of upstream's controller, the Lease of kube-controller-manager, and `--controllers` of its static Pods",
			Warning: "upstream's controller is on, which is well until slicesvc starts",
			Action:  "After the install, run `trivet migrate slices --to trivet` for the hand-over",
		},
		{
			ID: "pre-upstream-mirroring", Category: categoryUpstream,
			Reads:   "the managed fields of all mirrored EndpointSlices, the Lease and `--controllers` of kube-controller-manager",
			Warning: "upstream's controller is on, which is well while the loop `endpointslice-mirroring` is off",
			Action:  "After the install, run `trivet migrate mirroring --to trivet` for the hand-over",
		},
		{
			ID: "pre-upstream-nodes", Category: categoryUpstream,
			Reads:   "the managed fields of conditions and taints of all Nodes, Events `RegisteredNode`, the Lease and `--controllers` of kube-controller-manager",
			Warning: "upstream's controller is on, which is well while the loop `node-health` is off",
			Action:  "After the install, run `trivet migrate nodes --to trivet` for the hand-over",
		},
		{
			ID: "pre-upstream-evictions", Category: categoryUpstream,
			Reads:   "the Lease and `--controllers` of kube-controller-manager",
			Warning: "upstream's controller is on, which is well while the loop `taint-eviction` is off",
			Action:  "After the install, run `trivet migrate evictions --to trivet` for the hand-over",
		},
		{
			ID: "pre-upstream-endpoints", Category: categoryUpstream,
			Reads:   "the keys below `/registry/masterleases` in etcd, the managed fields of the endpoints of `default/kubernetes`, and `--endpoint-reconciler-type` of static Pods",
			Warning: "a kube-apiserver has its own reconciler, which is well until bootstrapsvc writes the endpoints",
			Action:  "After the install, run `trivet migrate endpoints --to trivet` for the hand-over; `--etcd-endpoints` of the cluster's etcd makes the answer certain",
		},
		{
			ID: "pre-ports", Category: categoryMachine,
			Reads: "whether a program of this machine listens on the ports of the servers or the agent", Failed: "a port is in use",
			Action: "Stop the other program, or set `--listen` and `--admin-listen`",
		},
		{
			ID: "pre-kubelet", Category: categoryMachine,
			Reads: "`--kubelet-healthz`", Failed: "the kubelet does not listen, or says that it is not healthy",
			Action: "Start the kubelet, or set its `healthzPort`; in probe mode the agent beats while this URL answers",
		},
		{
			ID: "pre-kubelet-kubeconfig", Category: categoryMachine,
			Reads:   "`--kubelet-kubeconfig` and the certificate in it",
			Warning: "the certificate is in the last tenth of its life", Failed: "the file is missing, or its certificate has expired or is not of a node",
			Action: "Run as root; then let the kubelet join again, or pass the path of its kubeconfig",
		},
		{
			ID: "pre-cri", Category: categoryMachine,
			Reads:   "version and status of the container runtime at `--cri-socket`",
			Warning: "its network is not ready", Failed: "the socket refuses the connection, or the runtime is not ready",
			Action: "Run as root; then start the container runtime, or pass the path of its socket",
		},
	}
	for i := range checks {
		checks[i].Pre = true
	}
	return checks
}

func afterChecks() []Check {
	checks := []Check{
		{
			ID: "gateway", Category: categoryServices,
			Reads: "a call to the gateway, as every command makes it", Failed: "the gateway refuses the call",
			Action: "Read the cause; docs/cli.md says how a command reaches the gateway and with which identity",
		},
		{
			ID: "replicas", Category: categoryServices,
			Reads: "the gateway's status of every replica", Failed: "a service has no replica, or a replica is not ready",
			Action: "Read the log of the replica, and `/readyz?verbose` of its admin server",
		},
		{
			ID: "workloads", Category: categoryServices,
			Reads:   "the Deployments, StatefulSets and DaemonSets in the namespace of Trivet, their Pods, and the last line in the log of a container that fails",
			Warning: "a Pod of a DaemonSet is not ready",
			Failed:  "a workload has fewer Pods than it wants, a Pod does not start, or fewer replicas joined than Pods are ready",
			Action:  "Read the cause; `kubectl -n NAMESPACE describe pod NAME` and `kubectl logs --previous` show more",
		},
		{
			ID: "versions", Category: categoryServices,
			Reads: "the version of every replica", Warning: "it differs from the version of this program",
			Action: "Finish the rolling update, or use the program of that version",
		},
		{
			ID: "shards", Category: categoryServices,
			Reads: "the number of led shards of each service", Failed: "a shard has no leader",
			Action: "Wait some seconds; then run `trivet shards` and start a replica, or read its log",
		},
		{
			ID: "loops", Category: categoryServices,
			Reads: "the state of every loop in every replica", Warning: "a loop only plans",
			Failed: "a loop fails or is stalled",
			Action: "Read the error; `trivet status -o json` has the loops",
		},
		{
			ID: "dependencies", Category: categoryServices,
			Reads: "the connections of every replica to etcd and kube-apiserver", Failed: "a connection fails",
			Action: "Check the address and the certificates of the connection, then the other side",
		},
		{
			ID: "lag", Category: categoryServices,
			Reads:   "when each Lease write is due, and how long after its cause each sync of slices in the last ten minutes wrote",
			Warning: "a write is more than 2 s late", Failed: "a Lease write is due for more than 30 s",
			Action: "Look at the load of kube-apiserver and at the CPU limits of the replica",
		},
		{
			ID: "clocks", Category: categoryServices,
			Reads:   "the `Date` header of kube-apiserver, and the times in the answers of the replicas",
			Warning: "a clock differs by more than 2 s from the clock of this machine", Failed: "it differs by more than a minute",
			Action: "Let a time service set the clock on each machine",
		},
		{
			ID: "verdict", Category: categoryServices,
			Reads: "the gateway's verdict on the cluster", Warning: "the verdict is WARNING", Failed: "the verdict is FAILED",
			Action: "Run `trivet status`, which shows each problem with its remedy",
		},
		{
			ID: "placement", Category: categoryCertificates,
			Reads:   "the Pods of the namespace of Trivet with a Secret, a volume of a CSI driver, keys of their machine or account `certs`, and the label `node-role.kubernetes.io/control-plane` of all Nodes",
			Warning: "a Pod with a key runs on another node, whose kubelet reads the key; or no node takes it, as with fewer control-plane nodes than members of etcd",
			Action:  "Set `pods.controlPlaneOnly` of the chart; docs/security.md says what a worker with a key may do",
		},
		{
			ID: "etcd-rights", Category: categoryCertificates,
			Reads:   "whether the client of `--etcd-cert-file` may read all keys, and the rights of its roles beyond those of deploy/etcd-roles.sh",
			Warning: "it may, because etcd has no users or the role is too wide: a process with this certificate is an administrator of the cluster",
			Action:  "Make the users and roles of deploy/etcd-roles.sh, or use `etcd.embedded`",
		},
		{
			ID: "certificates", Category: categoryCertificates,
			Reads:   "the Secrets of certificates in the namespace of Trivet, and the certificate of the gateway",
			Warning: "a certificate is in the last tenth of its life", Failed: "a certificate has expired, a Secret has none, or a server's is not of an authority in ConfigMap `trivet-ca`",
			Action: "Run `trivet certs status`, then `trivet certs apply`; a Secret `trivet-NAME-etcd` also needs `--etcd-ca-cert` and `--etcd-ca-key`, the authority of etcd's clients",
		},
	}
	for _, server := range []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"} {
		checks = append(checks, Check{
			ID: "rights-" + server, Category: categoryRights,
			Reads:  "a SubjectAccessReview for each right that deploy/ gives " + server + ", as its ServiceAccount and as user `trivet:" + server + "`",
			Failed: "kube-apiserver denies a right",
			Action: "Apply the roles again: `helm upgrade --force-conflicts` with the values of the release, or deploy/base with the component of each loop that is on",
		})
	}
	for _, duty := range Duties() {
		service, loop := LoopOf(duty)
		checks = append(checks, Check{
			ID: "writers-" + string(duty), Category: categoryWriters,
			Reads:   fmt.Sprintf("the loop `%s` of %s, and what `pre-upstream-%s` reads", loop, service, duty),
			Warning: "two programs may write, or only some replicas have the loop",
			Failed:  "upstream's program and " + service + " both write, or neither does",
			Action:  fmt.Sprintf("Run `trivet migrate %s`, which says which flag of which program to change", duty),
		})
	}
	return append(checks, Check{
		ID: "agents", Category: categoryAgents,
		Reads: "all Nodes, and the leases of agents", Warning: "some Nodes have an agent and others have none",
		Action: "Start the agent on the named Nodes; docs/agent.md has the ways",
	})
}
