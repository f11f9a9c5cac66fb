package diagnosis

import (
	"testing"
	"time"
)

func manager(renewed time.Duration, acquired time.Duration) Manager {
	return Manager{LeaseFound: true, Holder: "cp1", Renewed: now.Add(-renewed), Acquired: now.Add(-acquired)}
}

func withFlag(m Manager, flag string) Manager {
	m.Programs = []Program{{Pod: "kcm-cp1", Started: now.Add(-2 * time.Hour), Flag: flag, Given: flag != ""}}
	return m
}

func wrote(age time.Duration) Writes {
	return Writes{Objects: 1, Upstream: []Write{{"a/b", now.Add(-age)}}}
}

func TestUpstreamSlices(t *testing.T) {
	running := manager(time.Second, time.Hour)
	for name, c := range map[string]struct {
		writes  Writes
		manager Manager
		want    Activity
		direct  bool
	}{
		"a fresh write":                        {wrote(10 * time.Second), running, Active, true},
		"a fresh write without a Lease":        {wrote(10 * time.Second), Manager{}, Active, true},
		"a fresh write against the flag":       {wrote(10 * time.Second), withFlag(running, "*,-endpointslice-controller"), Active, true},
		"quiet cluster":                        {wrote(time.Hour), running, Unclear, false},
		"quiet cluster, flag on by default":    {wrote(time.Hour), withFlag(running, ""), Active, false},
		"quiet cluster, flag off":              {wrote(3 * time.Hour), withFlag(running, "*,-endpointslice-controller"), Inactive, false},
		"quiet cluster, only others are named": {Writes{}, withFlag(running, "ttl-controller"), Inactive, false},
		"flag off, and a write since":          {wrote(time.Hour), withFlag(running, "*,-endpointslice-controller"), Unclear, false},
		"kube-controller-manager ended":        {wrote(time.Hour), manager(10*time.Minute, time.Hour), Inactive, true},
		"ended, flag on":                       {Writes{}, withFlag(manager(10*time.Minute, time.Hour), "*"), Inactive, true},
		"nothing is known":                     {Writes{}, Manager{}, Unclear, false},
	} {
		got := UpstreamSlices(c.writes, c.manager, now)
		if got.Activity != c.want || got.Direct != c.direct || got.Sentence == "" {
			t.Errorf("%s: %+v, want activity %d", name, got, c.want)
		}
	}
	two := withFlag(running, "*")
	two.Programs = append(two.Programs, Program{Pod: "kcm-cp2", Flag: "*,-endpointslice-controller", Given: true})
	if got := UpstreamSlices(Writes{}, two, now); got.Activity != Unclear {
		t.Errorf("with two different flags: %+v, want unclear", got)
	}
}

func TestUpstreamNodes(t *testing.T) {
	running := manager(time.Second, 5*time.Minute)
	registered := func(age time.Duration) NodeFacts {
		return NodeFacts{Nodes: 3, EventsRead: true, Registered: Write{"n1", now.Add(-age)}}
	}
	for name, c := range map[string]struct {
		facts   NodeFacts
		manager Manager
		want    Activity
	}{
		"registered after the start": {registered(4 * time.Minute), running, Active},
		"registered in the same second": {NodeFacts{Nodes: 3, EventsRead: true, Registered: Write{"n1", running.Acquired}},
			Manager{LeaseFound: true, Holder: "cp1", Renewed: now, Acquired: running.Acquired.Add(600 * time.Millisecond)}, Active},
		"registered by the one before":  {registered(20 * time.Minute), running, Inactive},
		"just started":                  {registered(20 * time.Minute), manager(time.Second, 10*time.Second), Unclear},
		"Events may be gone":            {NodeFacts{Nodes: 3, EventsRead: true}, manager(time.Second, time.Hour), Unclear},
		"Events may not be read":        {NodeFacts{Nodes: 3}, running, Unclear},
		"no Node":                       {NodeFacts{EventsRead: true}, running, Unclear},
		"a taint since":                 {NodeFacts{Nodes: 3, EventsRead: true, Writes: wrote(time.Minute)}, running, Active},
		"kube-controller-manager ended": {NodeFacts{Nodes: 3, EventsRead: true}, manager(time.Hour, 2*time.Hour), Inactive},
	} {
		if got := UpstreamNodes(c.facts, c.manager, now); got.Activity != c.want {
			t.Errorf("%s: %+v, want activity %d", name, got, c.want)
		}
	}
}

func TestUpstreamEndpoints(t *testing.T) {
	program := func(flag string) []Program { return []Program{{Pod: "p", Flag: flag, Given: flag != ""}} }
	for name, c := range map[string]struct {
		facts EndpointFacts
		want  Activity
	}{
		"a key that is renewed":            {EndpointFacts{KeysRead: true, Keys: []MasterLease{{"10.0.0.1", true}}}, Active},
		"a key of a backup":                {EndpointFacts{KeysRead: true, Keys: []MasterLease{{"10.0.0.1", false}}}, Inactive},
		"no key":                           {EndpointFacts{KeysRead: true}, Inactive},
		"a key that bootstrapsvc adopted":  {EndpointFacts{Keys: []MasterLease{{"10.0.0.1", true}}}, Active},
		"no etcd":                          {EndpointFacts{}, Unclear},
		"no etcd, a fresh write":           {EndpointFacts{Writes: wrote(time.Minute)}, Active},
		"no etcd, the flag is none":        {EndpointFacts{Programs: program("none")}, Inactive},
		"no etcd, the flag is not set":     {EndpointFacts{Programs: program("")}, Active},
		"a key, though the flag says none": {EndpointFacts{KeysRead: true, Keys: []MasterLease{{"a", true}}, Programs: program("none")}, Active},
	} {
		if got := UpstreamEndpoints(c.facts, now); got.Activity != c.want {
			t.Errorf("%s: %+v, want activity %d", name, got, c.want)
		}
	}
}

func TestUpstreamBefore(t *testing.T) {
	checkAll(t, []judged{
		{"on", UpstreamBefore(Observation{Activity: Active, Sentence: "x"}), Warning, "is on: x"},
		{"off", UpstreamBefore(Observation{Activity: Inactive, Sentence: "x"}), OK, "is off: x"},
		{"unclear", UpstreamBefore(Observation{Sentence: "x"}), Unknown, "x"},
		{"manager runs", ManagerActivity(manager(time.Second, time.Hour), now), OK, "cp1 leads"},
		{"manager ended", ManagerActivity(manager(time.Hour, time.Hour), now), Warning, "no replica"},
		{"no Lease", ManagerActivity(Manager{}, now), Unknown, "no Lease"},
	})
}
