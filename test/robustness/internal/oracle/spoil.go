package oracle

import (
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// later is a revision, and an epoch, above every real one.
const later = int64(1) << 60

// Spoilers returns, for each rule, a change of a history that breaks the rule. A change returns
// false if the history has nothing for it to spoil, so that the rule could not have been broken. It
// changes the slices of its argument, not their elements' maps.
func Spoilers() map[string]func(*history.History) bool {
	return map[string]func(*history.History) bool{
		"holder": func(h *history.History) bool {
			return drop(&h.Claims, func(c history.Claim) bool { return c.Service == history.Slicesvc && c.Shard == 0 })
		},
		"act": func(h *history.History) bool {
			return edit(h.Acts, func(a *history.Act) bool {
				spoiled := a.Shard != history.AnyShard && within(h, a.Sent)
				if spoiled {
					a.Process = "another"
				}
				return spoiled
			})
		},
		"single": func(h *history.History) bool {
			return edit(h.Claims, func(c *history.Claim) bool {
				next := history.Claim{Service: c.Service, Shard: c.Shard, Holder: "another", Epoch: c.Gone - 1, Gone: c.Gone, From: c.To, To: c.To}
				if c.Gone == 0 || !within(h, c.To) { // It lasts longer than the record.
					next.Epoch, next.From, next.To = c.Epoch+1, (h.Begin+h.End)/2, h.End
				}
				spoiled := within(h, next.From)
				if spoiled {
					h.Claims = append(h.Claims, next)
				}
				return spoiled
			})
		},
		"stale":  spoilStale,
		"living": spoilLiving,
		"dead":   spoilDead,
		"lease": func(h *history.History) bool {
			return drop(&h.Renewals, func(r history.Renewal) bool { return r.At > h.Begin })
		},
		"regress": spoilRegress,
		"present": func(h *history.History) bool {
			return drop(&h.Slices, func(s history.SliceVersion) bool { return s.At > h.Begin+early })
		},
		"absent":        spoilAbsent,
		"duplicate":     spoilDuplicate,
		"simple-reader": spoilSimpleReader,
		"empty":         func(h *history.History) bool { return spoilEndpoints(h, nil) },
		"published":     spoilPublished,
		"unpublished":   func(h *history.History) bool { return spoilEndpoints(h, []string{"another"}) },
		"unallocated": func(h *history.History) bool {
			return drop(&h.Allocation, func(history.AllocationVersion) bool { return true })
		},
		"shared": spoilShared,
		"foreign": func(h *history.History) bool {
			if len(h.Foreign) == 0 {
				return false
			}
			h.Foreign = append(h.Foreign, history.ForeignVersion{Object: h.Foreign[0].Object, Revision: later, At: h.End})
			return true
		},
		"answer": func(h *history.History) bool {
			return edit(h.Answers, func(a *history.Answer) bool {
				if len(a.Leaders) == 0 || len(a.Partial) > 0 || a.Failed != "" || !within(h, a.Answered) {
					return false
				}
				a.Leaders = slices.Clone(a.Leaders)
				a.Leaders[0].Holder, a.Leaders[0].Epoch = "another", later
				return true
			})
		},
		"told": spoilTold,
		"lost": func(h *history.History) bool {
			return edit(h.Mutations, func(m *history.Mutation) bool {
				spoiled := m.Accepted && within(h, m.Answered)
				if spoiled {
					m.Value = "another"
				}
				return spoiled
			})
		},
		"labelled": spoilLabels,
		"call":     spoilCalls,
		"level":    spoilLevels,
		"silence": func(h *history.History) bool {
			spoiled := false
			for i := range h.Answers {
				h.Answers[i].Failed, spoiled = "no answer", true
			}
			return spoiled
		},
	}
}

// spoilTold lets the lists of Nodes and slices tell the first version of one object for ever.
func spoilTold(h *history.History) bool {
	spoiled := false
	for _, kind := range []string{history.NodesRead, history.SlicesRead} {
		versions, _ := objectsOf(*h, kind)
		name, ended := "", h.End
		for _, candidate := range slices.Sorted(maps.Keys(versions)) {
			if of := versions[candidate]; len(of) > 1 && !of[0].gone && of[1].at < ended {
				name, ended = candidate, of[1].at
			}
		}
		for i, r := range h.Readings {
			if _, listed := r.Objects[name]; r.Kind != kind || !listed || r.Partial || len(r.Missing) > 0 || r.Asked < ended || !within(h, r.Asked) {
				continue
			}
			h.Readings[i].Objects = maps.Clone(r.Objects)
			h.Readings[i].Objects[name] = versions[name][0].value
			spoiled = true
		}
	}
	return spoiled
}

// early is the time after the begin in which changes of Pods reach the slices.
const early = 5 * time.Second

func within(h *history.History, at time.Duration) bool { return h.Begin < at && at < h.End }

func drop[V any](from *[]V, which func(V) bool) bool {
	before := len(*from)
	*from = slices.DeleteFunc(*from, which)
	return len(*from) < before
}

func edit[V any](all []V, spoil func(*V) bool) bool {
	for i := range all {
		if spoil(&all[i]) {
			return true
		}
	}
	return false
}

func spoilStale(h *history.History) bool {
	for _, a := range h.Acts {
		if a.Shard != history.AnyShard && a.Revision > 1 && within(h, a.Answered) {
			h.Claims = append(h.Claims, history.Claim{Service: a.Service, Shard: a.Shard, Holder: "later", Epoch: later})
			before, after := a, a
			before.Process, before.Revision, after.Revision = "later", later+1, later+2
			h.Acts = append(h.Acts, before, after)
			return true
		}
	}
	return false
}

func spoilLiving(h *history.History) bool {
	for _, l := range h.Lives {
		for at := max(l.From, h.Begin) + time.Millisecond; at < until(*h, l.To) && at < h.End; at += time.Second {
			if heard(*h, l, at) {
				h.Nodes = slices.DeleteFunc(h.Nodes, func(v history.NodeVersion) bool { return v.Name == l.Node })
				h.Nodes = append(h.Nodes, history.NodeVersion{Name: l.Node, Ready: unknown, Revision: later, At: at})
				return true
			}
		}
	}
	return false
}

// spoilDead lets a node be dead from the start on, and never marked.
func spoilDead(h *history.History) bool {
	for _, l := range h.Lives {
		if l.To == 0 {
			continue
		}
		h.Begin, h.Windows = 0, nil
		h.Lives = []history.Life{{Node: l.Node, Kubelet: l.Kubelet, To: time.Millisecond}}
		h.Nodes = slices.DeleteFunc(h.Nodes, func(v history.NodeVersion) bool { return v.Ready == unknown || v.Gone })
		return true
	}
	return false
}

func spoilRegress(h *history.History) bool {
	for _, r := range h.Renewals {
		if !r.Gone && !renewedByKubelet(*h, r.Node) {
			r.Revision, r.At, r.Renewed = later, h.End, r.Renewed.Add(-time.Hour)
			// The last version before it must not be a deletion.
			h.Renewals = slices.DeleteFunc(h.Renewals, func(o history.Renewal) bool { return o.Node == r.Node && o.Gone })
			h.Renewals = append(h.Renewals, r)
			return true
		}
	}
	return false
}

// spoilAbsent removes the slices, and lets the first Pod that was ready stay so.
func spoilAbsent(h *history.History) bool {
	for _, p := range h.Pods {
		selected := slices.ContainsFunc(h.Services, func(s history.ServiceVersion) bool { return selects(s, p) && lasts(*h, s.Name) })
		if p.Ready && p.Address != "" && selected {
			h.Slices = nil
			drop(&h.Pods, func(o history.PodVersion) bool { return o.Name == p.Name && o.Revision > p.Revision })
			return true
		}
	}
	return false
}

// spoilDuplicate copies the first slice with a ready address, and lets both stay as they are.
func spoilDuplicate(h *history.History) bool {
	for _, s := range h.Slices {
		if len(s.Ready) == 0 || !lasts(*h, s.Service) {
			continue
		}
		drop(&h.Slices, func(o history.SliceVersion) bool { return o.Name == s.Name && o.Revision > s.Revision })
		s.Name += "-copy"
		h.Slices = append(h.Slices, s)
		return true
	}
	return false
}

// lasts says whether a Service is there at the end.
func lasts(h history.History, service string) bool {
	return !slices.ContainsFunc(h.Services, func(s history.ServiceVersion) bool { return s.Name == service && s.Gone })
}

// spoilEndpoints gives default/kubernetes other endpoints from the begin on.
func spoilEndpoints(h *history.History, addresses []string) bool {
	if len(h.Endpoints) == 0 || len(h.Servers) == 0 {
		return false
	}
	first := slices.MinFunc(h.Endpoints, func(a, b history.EndpointsVersion) int { return int(a.Revision - b.Revision) })
	first.Addresses = []string{h.Servers[0].Address}
	h.Endpoints = []history.EndpointsVersion{first, {Revision: later, At: h.Begin, Addresses: addresses}}
	return true
}

func spoilPublished(h *history.History) bool {
	for _, v := range h.Endpoints {
		if len(v.Addresses) > 0 && v.At < h.End {
			h.Endpoints = []history.EndpointsVersion{v}
			h.Servers = append(h.Servers, history.Server{Address: v.Addresses[0], From: h.Begin})
			return true
		}
	}
	return false
}

// spoilShared lets another Service use, at the end, what a Service uses that is not deleted.
func spoilShared(h *history.History) bool {
	for _, s := range h.Services {
		if lasts(*h, s.Name) && len(s.Uses) > 0 {
			s.Name, s.Revision, s.At = s.Name+"-copy", later, h.End
			h.Services = append(h.Services, s)
			return true
		}
	}
	return false
}

// spoilCalls makes each call fail. Some are far from any fault.
func spoilCalls(h *history.History) bool {
	spoiled := false
	for i := range h.Calls {
		h.Calls[i].Failed = "spoiled"
		spoiled = spoiled || within(h, h.Calls[i].To)
	}
	return spoiled
}

// spoilLevels puts a level above its limit.
func spoilLevels(h *history.History) bool {
	return edit(h.Levels, func(l *history.Level) bool {
		l.Value = l.Most + 1
		return within(h, l.At)
	})
}

// spoilLabels stops a leader around a complete answer.
func spoilLabels(h *history.History) bool {
	for _, a := range h.Answers {
		for _, c := range h.Claims {
			if a.Failed == "" && !a.Partial[c.Service] && within(h, a.Answered) &&
				c.From+signalled < a.Asked && a.Answered+slack < until(*h, c.To) && c.Holder != "" {
				h.Downs = append(h.Downs, history.Down{Process: c.Holder, From: a.Asked - 2*signalled, To: a.Answered + 2*slack})
				return true
			}
		}
	}
	return false
}
