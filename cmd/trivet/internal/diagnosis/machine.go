package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// oldestEtcdMinor is the oldest minor version of etcd 3 without a warning.
	oldestEtcdMinor = 5
	// slowTransaction is a duration of a transaction that shortens the time of a leader to act.
	slowTransaction = 500 * time.Millisecond
)

// EtcdMember is the answer of one member of etcd.
type EtcdMember struct {
	Endpoint string
	// Version is "3.7.0".
	Version string
	// Alarms are raised by the member, such as NOSPACE.
	Alarms  []string
	Failure Failure
}

// EtcdMembers judges the members of etcd.
func EtcdMembers(members []EtcdMember) Result {
	var refused, silent, alarms, old []string
	for _, m := range members {
		text := m.Endpoint + ": " + m.Failure.Text
		switch {
		case m.Failure.Failed() && m.Failure.Answered:
			refused = append(refused, text)
		case m.Failure.Failed():
			silent = append(silent, text)
		case len(m.Alarms) > 0:
			alarms = append(alarms, m.Endpoint+": "+strings.Join(m.Alarms, ", "))
		case isOldEtcd(m.Version):
			old = append(old, m.Endpoint+" is "+m.Version)
		}
	}
	answered := len(members) - len(refused) - len(silent)
	switch {
	case len(alarms) > 0:
		return fail("etcd has an alarm: %s", list(alarms))
	case answered == 0 && len(silent) == 0:
		return fail("No member of etcd can be used: %s", list(refused))
	case answered == 0:
		return Undetermined("no member of etcd answered: %s", list(append(silent, refused...)))
	case len(refused)+len(silent) > 0:
		return warn("%d of %d members of etcd answered; %s", answered, len(members), list(append(refused, silent...)))
	case len(old) > 0:
		return warn("%s; Trivet is tested with 3.7", list(old))
	default:
		return ok("%s of etcd answered, version %s", count(answered, "member"), members[0].Version)
	}
}

func isOldEtcd(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major < 3 || major == 3 && minor < oldestEtcdMinor
}

// EtcdTransaction is the result of a transaction with a lease.
type EtcdTransaction struct {
	// Failure is that of the step that failed first.
	Failure Failure
	// Step names the step: "grant a lease", "transaction", "revoke the lease".
	Step string
	// Wrong says what differs from the semantics of etcd v3; empty if nothing does.
	Wrong string
	Took  time.Duration
	// Denied are keys and prefixes that bootstrapsvc reads and this client may not read.
	Denied []string
}

// EtcdTransactions judges whether etcd has the transactions and leases that leadership needs.
func EtcdTransactions(t EtcdTransaction) Result {
	switch {
	case t.Failure.Failed() && !t.Failure.Answered:
		return Undetermined("%s: %s", t.Step, t.Failure.Text)
	case t.Failure.Failed():
		return fail("etcd refused to %s: %s", t.Step, t.Failure.Text)
	case t.Wrong != "":
		return fail("This is no etcd with v3 transactions: %s", t.Wrong)
	case len(t.Denied) > 0:
		return warn("This client may not read %s, which bootstrapsvc needs", list(t.Denied)).
			withHint("Run deploy/etcd-roles.sh, unless bootstrapsvc has another client certificate")
	case t.Took > slowTransaction:
		return warn("A transaction with a lease takes %s", t.Took.Round(time.Millisecond))
	default:
		return ok("A transaction with a lease takes %s", t.Took.Round(time.Millisecond))
	}
}

// Port is a port on which a server will listen.
type Port struct {
	Server, Address string
	Failure         Failure
}

// Ports judges whether the ports of this machine are free.
func Ports(ports []Port) Result {
	var taken, unclear []string
	for _, p := range ports {
		text := fmt.Sprintf("%s (%s): %s", p.Address, p.Server, p.Failure.Text)
		switch {
		case !p.Failure.Failed():
		case p.Failure.Answered:
			taken = append(taken, text)
		default:
			unclear = append(unclear, text)
		}
	}
	switch {
	case len(taken) > 0:
		return fail("%s not free: %s", count(len(taken), "port"), list(taken))
	case len(unclear) > 0:
		return Undetermined("%s", list(unclear))
	default:
		return ok("%s of this machine are free", count(len(ports), "port"))
	}
}

// Healthz is the answer of the kubelet's healthz.
type Healthz struct {
	URL     string
	Code    int
	Body    string
	Failure Failure
}

// KubeletHealth judges the kubelet of this machine.
func KubeletHealth(h Healthz) Result {
	switch {
	case h.Failure.Failed() && h.Failure.Answered:
		return fail("The kubelet does not listen at %s: %s", h.URL, h.Failure.Text)
	case h.Failure.Failed():
		return Undetermined("no answer from %s: %s", h.URL, h.Failure.Text)
	case h.Code != 200:
		return fail("The kubelet says %d at %s: %s", h.Code, h.URL, h.Body)
	default:
		return ok("The kubelet is healthy at %s", h.URL)
	}
}

// KubeletIdentity is what the kubelet's kubeconfig holds.
type KubeletIdentity struct {
	Path        string
	User        string
	Groups      []string
	Certificate Certificate
	// Failure says why the file cannot be read. A file that may not be read is not answered.
	Failure Failure
}

const (
	nodeUserPrefix = "system:node:"
	nodeGroup      = "system:nodes"
)

// KubeletKubeconfig judges the kubeconfig that the agent reads.
func KubeletKubeconfig(k KubeletIdentity, now time.Time) Result {
	switch {
	case k.Failure.Failed() && k.Failure.Answered:
		return fail("%s cannot be used: %s", k.Path, k.Failure.Text)
	case k.Failure.Failed():
		return Undetermined("%s: %s", k.Path, k.Failure.Text)
	case !strings.HasPrefix(k.User, nodeUserPrefix) || !slices.Contains(k.Groups, nodeGroup):
		return fail("The certificate in %s is of user %q, not of a node", k.Path, k.User)
	}
	lifetime := Certificates([]Certificate{k.Certificate}, now)
	if lifetime.State != OK {
		return lifetime
	}
	return ok("%s is of node %s, until %s", k.Path, strings.TrimPrefix(k.User, nodeUserPrefix), date(k.Certificate.NotAfter))
}

// Runtime is the answer of the container runtime at its CRI socket.
type Runtime struct {
	Socket        string
	Name, Version string
	// Conditions has RuntimeReady and NetworkReady.
	Conditions map[string]bool
	Failure    Failure
}

// ContainerRuntime judges the container runtime of this machine.
func ContainerRuntime(r Runtime) Result {
	switch {
	case r.Failure.Failed() && r.Failure.Answered:
		return fail("The container runtime cannot be used at %s: %s", r.Socket, r.Failure.Text)
	case r.Failure.Failed():
		return Undetermined("%s: %s", r.Socket, r.Failure.Text)
	case !r.Conditions["RuntimeReady"]:
		return fail("%s %s is not ready", r.Name, r.Version)
	case !r.Conditions["NetworkReady"]:
		return warn("%s %s is ready, and its network is not: only Pods with hostNetwork start", r.Name, r.Version)
	default:
		return ok("%s %s is ready", r.Name, r.Version)
	}
}
