package oracle

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// endpointState is what the objects say about one address of one Service.
type endpointState struct{ present, absent, duplicate bool }

// view joins Services, Pods and EndpointSlices, as of one revision.
type view struct {
	services map[string]history.ServiceVersion
	pods     map[string]history.PodVersion
	slices   map[string]history.SliceVersion
}

// change is one version of one of the three kinds.
type change struct {
	revision int64
	at       time.Duration
	service  *history.ServiceVersion
	pod      *history.PodVersion
	slice    *history.SliceVersion
}

// pods finds ready endpoints without a ready Pod, ready Pods without an endpoint, and addresses in
// two slices.
func pods(h history.History, f *finding) {
	v := &view{services: map[string]history.ServiceVersion{}, pods: map[string]history.PodVersion{}, slices: map[string]history.SliceVersion{}}
	since := map[history.Lag]time.Duration{} // by rule and subject
	for _, c := range changesOf(h) {
		touched := v.touched(c)
		v.apply(c)
		for name := range v.touched(c) {
			touched[name] = true
		}
		for name := range touched {
			v.note(f, since, name, c.at)
		}
		for _, rule := range []string{"present", "absent", "duplicate"} {
			f.count(rule, 1)
		}
	}
	for lag, from := range since {
		f.lag(lag.Rule, history.Slicesvc, from, h.End, lag.What)
	}
}

func changesOf(h history.History) []change {
	var all []change
	for i := range h.Services {
		all = append(all, change{revision: h.Services[i].Revision, at: h.Services[i].At, service: &h.Services[i]})
	}
	for i := range h.Pods {
		all = append(all, change{revision: h.Pods[i].Revision, at: h.Pods[i].At, pod: &h.Pods[i]})
	}
	for i := range h.Slices {
		all = append(all, change{revision: h.Slices[i].Revision, at: h.Slices[i].At, slice: &h.Slices[i]})
	}
	slices.SortFunc(all, func(a, b change) int { return cmp.Compare(a.revision, b.revision) })
	return all
}

func (v *view) apply(c change) {
	switch {
	case c.service != nil:
		put(v.services, c.service.Name, *c.service, c.service.Gone)
	case c.pod != nil:
		put(v.pods, c.pod.Namespace+"/"+c.pod.Name, *c.pod, c.pod.Gone)
	case c.slice != nil:
		put(v.slices, c.slice.Name, *c.slice, c.slice.Gone)
	}
}

func put[V any](into map[string]V, name string, value V, gone bool) {
	if gone {
		delete(into, name)
		return
	}
	into[name] = value
}

// touched returns the Services that a change is about, before or after it is applied.
func (v *view) touched(c change) map[string]bool {
	names := map[string]bool{}
	switch {
	case c.service != nil:
		names[c.service.Name] = true
	case c.slice != nil:
		names[c.slice.Service] = true
		names[v.slices[c.slice.Name].Service] = true
	case c.pod != nil:
		before := v.pods[c.pod.Namespace+"/"+c.pod.Name]
		for name, s := range v.services {
			if selects(s, *c.pod) || selects(s, before) {
				names[name] = true
			}
		}
	}
	delete(names, "")
	return names
}

func selects(s history.ServiceVersion, p history.PodVersion) bool {
	if len(s.Selector) == 0 || !strings.HasPrefix(s.Name, p.Namespace+"/") {
		return false
	}
	for key, value := range s.Selector {
		if p.Labels[key] != value {
			return false
		}
	}
	return true
}

// state compares the slices of a Service with its Pods. A Service without a selector, or that is
// gone, has no rule here: only its owner says what belongs into its slices.
func (v *view) state(name string) map[string]endpointState {
	service, exists := v.services[name]
	if !exists || len(service.Selector) == 0 {
		return nil
	}
	want, has, times := map[string]bool{}, map[string]bool{}, map[string]int{}
	for _, p := range v.pods {
		if p.Address != "" && selects(service, p) && (p.Ready || service.PublishNotReady) {
			want[p.Address] = true
		}
	}
	for _, s := range v.slices {
		if s.Service != name {
			continue
		}
		for address, ready := range s.Ready {
			times[address]++
			has[address] = has[address] || ready
		}
	}
	states := map[string]endpointState{}
	for address := range times {
		states[address] = endpointState{present: has[address] && !want[address], duplicate: times[address] > 1}
	}
	for address := range want {
		state := states[address]
		state.absent = !has[address]
		states[address] = state
	}
	return states
}

// note begins and ends the lags of a Service after a change.
func (v *view) note(f *finding, since map[history.Lag]time.Duration, name string, at time.Duration) {
	wrong := map[history.Lag]bool{}
	for address, state := range v.state(name) {
		what := name + " " + address
		for rule, holds := range map[string]bool{"present": state.present, "absent": state.absent, "duplicate": state.duplicate} {
			if holds {
				wrong[history.Lag{Rule: rule, What: what}] = true
			}
		}
	}
	for lag := range wrong {
		if _, lasts := since[lag]; !lasts {
			since[lag] = at
		}
	}
	for _, lag := range slices.Collect(maps.Keys(since)) {
		if strings.HasPrefix(lag.What, name+" ") && !wrong[lag] {
			f.lag(lag.Rule, history.Slicesvc, since[lag], at, lag.What)
			delete(since, lag)
		}
	}
}
