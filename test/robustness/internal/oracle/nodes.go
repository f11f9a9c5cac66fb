package oracle

import (
	"cmp"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

const unknown = "Unknown"

// nodes finds living nodes that were marked Unknown, and dead ones that were not.
func nodes(h history.History, f *finding) {
	versions := map[string][]history.NodeVersion{}
	for _, v := range h.Nodes {
		versions[v.Name] = append(versions[v.Name], v)
	}
	for name, list := range versions {
		slices.SortFunc(list, func(a, b history.NodeVersion) int { return cmp.Compare(a.Revision, b.Revision) })
		lives := livesOf(h, name)
		f.count("living", len(lives))
		for i, v := range list {
			marked := v.Ready == unknown && !v.Gone && (i == 0 || list[i-1].Ready != unknown)
			if marked && slices.ContainsFunc(lives, func(l history.Life) bool { return heard(h, l, v.At) }) {
				waited := 2*h.Stalled(v.At-h.Grace, v.At) > h.Grace // perhaps the program of the node
				f.found(waited, "living", history.Leasesvc, v.At, "%s lives and is marked Unknown, revision %d", name, v.Revision)
			}
		}
		for i, l := range lives {
			if l.To == 0 {
				continue
			}
			f.count("dead", 1)
			declared := h.End
			if i+1 < len(lives) {
				declared = lives[i+1].From
			}
			for _, v := range list {
				if v.At >= l.To && (v.Ready == unknown || v.Gone) {
					declared = min(declared, v.At)
					break
				}
			}
			// What the changes of the leader and the times without one cost is no part of the lag.
			due := f.observation.markedBy(h, l) - f.observation.Grace
			f.whole("dead", history.Leasesvc, max(l.To, due), declared, name+" is dead and not marked Unknown")
		}
	}
}

// heard says whether a node lived at a time, and gave a sign of life in the grace period before. A
// kubelet gives none while etcd has no quorum, so that time is no part of the period.
func heard(h history.History, l history.Life, at time.Duration) bool {
	if at < l.From || at > until(h, l.To) {
		return false
	}
	if !l.Kubelet {
		return true
	}
	renewed := time.Duration(-1)
	for _, r := range h.Renewals {
		if r.Node == l.Node && !r.Gone && r.At <= at {
			renewed = max(renewed, r.At)
		}
	}
	return renewed >= 0 && at-renewed-h.WithoutQuorum(renewed, at) <= h.Grace
}

func livesOf(h history.History, node string) []history.Life {
	lives := slices.DeleteFunc(slices.Clone(h.Lives), func(l history.Life) bool { return l.Node != node })
	slices.SortFunc(lives, func(a, b history.Life) int { return cmp.Compare(a.From, b.From) })
	return lives
}

// leases finds Leases of living nodes with an agent that have lapsed, and those that were set back.
// leasesvc writes only these.
func leases(h history.History, f *finding) {
	versions := map[string][]history.Renewal{}
	for _, r := range h.Renewals {
		versions[r.Node] = append(versions[r.Node], r)
	}
	for node, list := range versions {
		slices.SortFunc(list, func(a, b history.Renewal) int { return cmp.Compare(a.Revision, b.Revision) })
		kubelet := renewedByKubelet(h, node)
		if !kubelet {
			f.count("regress", len(list))
		}
		for i, r := range list {
			if i > 0 && !kubelet && !r.Gone && !list[i-1].Gone && r.Renewed.Before(list[i-1].Renewed) {
				f.breach("regress", history.Leasesvc, r.At, "the Lease of %s goes back by %v, revision %d", node, list[i-1].Renewed.Sub(r.Renewed), r.Revision)
			}
		}
		f.count("lease", len(list))
		for _, l := range livesOf(h, node) {
			if !l.Kubelet {
				lapses(h, f, l, list)
			}
		}
	}
}

// renewedByKubelet says whether the kubelet of a node renews its Lease, by its own clock.
func renewedByKubelet(h history.History, node string) bool {
	return slices.ContainsFunc(h.Lives, func(l history.Life) bool { return l.Node == node && l.Kubelet })
}

// lapses finds the times of a life in which the Lease is older than its duration.
func lapses(h history.History, f *finding, l history.Life, list []history.Renewal) {
	end := until(h, l.To)
	due := l.From // A new life has a Lease from its begin.
	for _, r := range list {
		if r.At >= end {
			break
		}
		if r.Gone {
			due = max(l.From, r.At)
			continue
		}
		f.lag("lease", history.Leasesvc, due, r.At, "the Lease of "+l.Node+" has lapsed")
		due = max(l.From, r.At+r.Duration)
	}
	f.lag("lease", history.Leasesvc, due, end, "the Lease of "+l.Node+" has lapsed")
}

// servers checks the endpoints of default/kubernetes.
func servers(h history.History, f *finding) {
	versions := slices.SortedFunc(slices.Values(h.Endpoints), func(a, b history.EndpointsVersion) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, rule := range []string{"empty", "published", "unpublished"} {
		f.count(rule, len(versions))
	}
	for i, v := range versions {
		if len(v.Addresses) == 0 && i > 0 && len(versions[i-1].Addresses) > 0 {
			f.breach("empty", history.Bootstrapsvc, v.At, "default/kubernetes has no endpoint at revision %d", v.Revision)
		}
	}
	for _, s := range h.Servers {
		rule, what := "published", "kube-apiserver "+s.Address+" is dead and an endpoint"
		if s.Running {
			rule, what = "unpublished", "kube-apiserver "+s.Address+" runs and is no endpoint"
		}
		end, since := until(h, s.To), time.Duration(-1)
		for _, v := range versions {
			at := max(v.At, s.From)
			if wrong := slices.Contains(v.Addresses, s.Address) != s.Running; at >= end {
				break
			} else if !wrong && since >= 0 {
				f.lag(rule, history.Bootstrapsvc, since, at, what)
				since = -1
			} else if wrong && since < 0 {
				since = at
			}
		}
		if since >= 0 {
			f.lag(rule, history.Bootstrapsvc, since, end, what)
		}
	}
}
