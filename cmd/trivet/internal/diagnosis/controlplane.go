package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// testedMinor is the minor version of Kubernetes 1 with which Trivet is tested.
const testedMinor = 37

// Version is what kube-apiserver says about itself.
type Version struct {
	Major, Minor int
	Text         string
}

// KubernetesVersion judges the version of kube-apiserver.
func KubernetesVersion(v Version) Result {
	if v.Major == 1 && v.Minor == testedMinor {
		return ok("kube-apiserver is %s", v.Text)
	}
	return warn("kube-apiserver is %s; Trivet is tested with 1.%d", v.Text, testedMinor)
}

// API is a resource of kube-apiserver that Trivet uses.
type API struct {
	Name string
	// Optional APIs are missing in older versions.
	Optional bool
	Served   bool
}

// APIs judges whether kube-apiserver serves what Trivet uses.
func APIs(apis []API) Result {
	var missing, optional []string
	for _, api := range apis {
		switch {
		case api.Served:
		case api.Optional:
			optional = append(optional, api.Name)
		default:
			missing = append(missing, api.Name)
		}
	}
	switch {
	case len(missing) > 0:
		return fail("kube-apiserver does not serve %s", list(missing))
	case len(optional) > 0:
		return warn("kube-apiserver does not serve %s, so bootstrapsvc reads ClusterIPs from etcd", list(optional))
	default:
		return ok("kube-apiserver serves all %s", count(len(apis), "API"))
	}
}

// Right is a right and kube-apiserver's decision about it.
type Right struct {
	Verb, Group, Resource, Namespace, Name string
	// Optional rights are needed only in some cases.
	Optional bool
	Allowed  bool
	// Failure says why there is no decision.
	Failure Failure
}

func (r Right) String() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	if r.Name != "" {
		text += "/" + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// divide returns the denied rights and the ones without a decision.
func divide(rights []Right, optional bool) (denied, unclear []string) {
	for _, right := range rights {
		switch {
		case right.Allowed || right.Optional != optional:
		case right.Failure.Failed():
			unclear = append(unclear, right.String()+": "+right.Failure.Text)
		default:
			denied = append(denied, right.String())
		}
	}
	return denied, unclear
}

// InstallRights judges the caller's own rights for an install.
func InstallRights(rights []Right) Result {
	denied, unclear := divide(rights, false)
	optional, _ := divide(rights, true)
	switch {
	case len(denied) > 0:
		return fail("You may not %s", list(denied))
	case len(unclear) > 0:
		return Undetermined("%s", list(unclear))
	case len(optional) > 0:
		return warn("You have all rights that every install needs, but you may not %s", list(optional))
	default:
		return ok("You have all %s that an install may need", count(len(rights), "right"))
	}
}

// The kinds of Pods of an installation.
const (
	ServerPod = "the servers"
	JobPod    = "the Job certs"
	AgentPod  = "the agents"
)

// PodAdmission is kube-apiserver's answer about a kind of Pod.
type PodAdmission struct {
	Kind string
	// Refusal has the words of kube-apiserver; empty if it takes the Pod.
	Refusal string
}

// PodAdmissions are the answers about a namespace.
type PodAdmissions struct {
	Namespace string
	// Absent means that the namespace does not exist.
	Absent bool
	Pods   []PodAdmission
}

// QuotaMissing is in the refusal of a class that needs a quota, which the install makes.
const QuotaMissing = "insufficient quota to match these scopes"

// Pods judges whether a namespace takes the Pods of an installation. Agents are optional.
func Pods(a PodAdmissions) Result {
	var refused, later []string
	for _, pod := range a.Pods {
		switch text := fmt.Sprintf("%s (%s)", pod.Kind, pod.Refusal); {
		case pod.Refusal == "":
		case pod.Kind == AgentPod || strings.Contains(pod.Refusal, QuotaMissing):
			later = append(later, text)
		default:
			refused = append(refused, text)
		}
	}
	switch {
	case a.Absent:
		return skip("Namespace %s does not exist yet", a.Namespace)
	case len(refused) > 0:
		return fail("Namespace %s refuses the Pods of %s", a.Namespace, list(append(refused, later...)))
	case len(later) > 0:
		return warn("Namespace %s refuses the Pods of %s", a.Namespace, list(later)).withHint(
			"ResourceQuota trivet-priority of the install permits the classes of the Pods; agents as a DaemonSet need the Pod Security level privileged")
	default:
		return ok("Namespace %s takes the Pods of the servers, the Jobs and the agents", a.Namespace)
	}
}

// Identity is one of the names by which a server may call kube-apiserver.
type Identity struct {
	User   string
	Rights []Right
}

// ServerRights judges the rights of a server. Of its possible identities the one with the most
// rights counts. Without any right the server may use an identity that is not known here.
func ServerRights(server string, running bool, identities []Identity) Result {
	var best Identity
	most := -1
	for _, identity := range identities {
		allowed := 0
		for _, right := range identity.Rights {
			if right.Allowed {
				allowed++
			}
		}
		if allowed > most {
			best, most = identity, allowed
		}
	}
	denied, unclear := divide(best.Rights, false)
	switch {
	case len(unclear) > 0:
		return Undetermined("%s", list(unclear))
	case len(denied) == 0:
		return ok("%s has all %s of %s", best.User, count(len(best.Rights), "right"), server)
	case !running:
		return skip("No replica of %s runs", server)
	case most == 0:
		return Undetermined("no known identity of %s has any of its %s", server, count(len(denied), "right"))
	default:
		return fail("%s may not %s", best.User, list(denied)).withHint(
			"Apply the roles of %s again: helm upgrade --force-conflicts with the values of the release, or deploy/base with the component of each loop that is on", server)
	}
}

const (
	// skewWarning and skewFailure limit the difference between two clocks.
	skewWarning = 2 * time.Second
	skewFailure = time.Minute
)

// Clock is the clock of a server, compared with the clock of this machine.
type Clock struct {
	Server string
	// Offset is positive if the server's clock is ahead.
	Offset time.Duration
	// Error is the largest error of Offset.
	Error time.Duration
}

func (c Clock) skew() time.Duration { return max(c.Offset.Abs()-c.Error, 0) }

// Clocks judges the clocks of servers.
func Clocks(clocks []Clock) Result {
	if len(clocks) == 0 {
		return Undetermined("no server told its time")
	}
	worst := slices.MaxFunc(clocks, func(a, b Clock) int { return int(a.skew() - b.skew()) })
	direction := "ahead of"
	if worst.Offset < 0 {
		direction = "behind"
	}
	text := fmt.Sprintf("The clock of %s is %s %s the clock of this machine", worst.Server, worst.skew().Round(time.Second), direction)
	switch {
	case worst.skew() >= skewFailure:
		return fail("%s", text)
	case worst.skew() >= skewWarning:
		return warn("%s", text)
	default:
		return ok("The clocks of %s agree with the clock of this machine within %s", count(len(clocks), "server"), skewWarning)
	}
}

// Certificate is the lifetime of a certificate.
type Certificate struct {
	Name                string
	NotBefore, NotAfter time.Time
	// Problem says why the certificate cannot be used; empty if it can be read.
	Problem string
}

// Certificates judges the lifetimes of certificates. A certificate needs attention in the last
// tenth of its life.
func Certificates(certificates []Certificate, now time.Time) Result {
	if len(certificates) == 0 {
		return skip("There is no certificate to check")
	}
	var unusable, ending []string
	first := certificates[0]
	for _, c := range certificates {
		switch {
		case c.Problem != "":
			unusable = append(unusable, c.Name+": "+c.Problem)
		case now.After(c.NotAfter):
			unusable = append(unusable, fmt.Sprintf("%s expired at %s", c.Name, date(c.NotAfter)))
		case now.Before(c.NotBefore):
			unusable = append(unusable, fmt.Sprintf("%s is valid only from %s", c.Name, date(c.NotBefore)))
		case c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/10:
			ending = append(ending, fmt.Sprintf("%s expires at %s", c.Name, date(c.NotAfter)))
		}
		if c.Problem == "" && (first.Problem != "" || c.NotAfter.Before(first.NotAfter)) {
			first = c
		}
	}
	switch {
	case len(unusable) > 0:
		return fail("%s", list(unusable))
	case len(ending) > 0:
		return warn("%s", list(ending))
	default:
		return ok("The first of %s to expire is %s, at %s", count(len(certificates), "certificate"), first.Name, date(first.NotAfter))
	}
}
