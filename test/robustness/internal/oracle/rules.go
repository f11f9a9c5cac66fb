package oracle

// Rule is one promise that the oracle judges.
type Rule struct {
	Name, Service string
	// Promise says what holds: always, or not for longer than the bound of the rule.
	Promise string
}

// Rules returns all rules, by service.
func Rules() []Rule {
	const leasesvc, bootstrapsvc, slicesvc, gateway, each = "leasesvc", "bootstrapsvc", "slicesvc", "gateway", "each"
	return []Rule{
		{"holder", each, "a shard has a leader that runs"},
		{"act", each, "a write to Kubernetes is sent while its process leads the shard of the object"},
		{"stale", each, "no term writes over the write of a later term"},
		{"foreign", each, "an object of another program does not change"},
		{"level", each, "memory, goroutines, open files, lost records and crashes are within limits"},
		{"living", leasesvc, "a Node that lives is not marked Unknown"},
		{"dead", leasesvc, "a Node that is dead is marked Unknown. What changes of the leader cost is no part of it"},
		{"lease", leasesvc, "the Lease of a Node with an agent has not lapsed"},
		{"regress", leasesvc, "the renewTime of a Lease that leasesvc writes does not go back"},
		{"unallocated", bootstrapsvc, "an address or port that a Service uses is allocated"},
		{"shared", bootstrapsvc, "two Services do not use one address or port"},
		{"empty", bootstrapsvc, "default/kubernetes has an endpoint"},
		{"published", bootstrapsvc, "the endpoint of a dead kube-apiserver is not published"},
		{"unpublished", bootstrapsvc, "the endpoint of a running kube-apiserver is published"},
		{"lost", bootstrapsvc, "an accepted change of an ignore mark is in etcd, and no other change is"},
		{"present", slicesvc, "a Pod that is gone or unready is no ready endpoint"},
		{"absent", slicesvc, "a ready Pod is a ready endpoint"},
		{"duplicate", slicesvc, "an address is in one EndpointSlice of a Service"},
		{"answer", gateway, "a leader that the gateway names leads, unless the answer says that the shard is missing"},
		{"labelled", gateway, "an answer lacks a shard whose leader does not run, and says so"},
		{"told", gateway, "a list of Nodes, EndpointSlices or findings is not older than it says, but for shards that it lacks"},
		{"silence", gateway, "the gateway answers"},
		{"call", gateway, "a call with Trivet's retries succeeds, but during a fault that clients may notice and shortly after"},
	}
}
