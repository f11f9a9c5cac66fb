package identity

import (
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestReplicaID_HostnameBecomesALabel(t *testing.T) {
	for name, c := range map[string]struct{ hostname, want string }{
		"plain":             {hostname: "node-1", want: "node-1-x7k2p"},
		"upper case":        {hostname: "Node1", want: "node1-x7k2p"},
		"qualified":         {hostname: "node-1.example.org", want: "node-1-example-org-x7k2p"},
		"underscore":        {hostname: "my_host", want: "my-host-x7k2p"},
		"none":              {hostname: "", want: "replica-x7k2p"},
		"nothing usable":    {hostname: "…", want: "replica-x7k2p"},
		"dash at the ends":  {hostname: "-a-", want: "a-x7k2p"},
		"too long":          {hostname: strings.Repeat("a", 80), want: strings.Repeat("a", 57) + "-x7k2p"},
		"cut behind a dash": {hostname: strings.Repeat("a", 56) + ".b", want: strings.Repeat("a", 56) + "-x7k2p"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := replicaID(c.hostname, "x7k2p"); got != c.want {
				t.Errorf("replicaID(%q) = %q, want %q", c.hostname, got, c.want)
			}
		})
	}
}

func TestNewReplicaID_IsNewEveryTimeAndALabel(t *testing.T) {
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?-[a-z0-9]{5}$`)
	seen := map[string]bool{}
	for range 100 {
		id := NewReplicaID()
		if !label.MatchString(id) || len(id) > 63 {
			t.Errorf("NewReplicaID() = %q, which is no DNS label", id)
		}
		if seen[id] {
			t.Errorf("NewReplicaID() = %q twice", id)
		}
		seen[id] = true
	}
}

func TestVersionOf_LinkerThenModuleThenDevel(t *testing.T) {
	built := func(version string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}}
	}
	for name, c := range map[string]struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		"linked":          {linked: "v1.2.3", info: built("v0.1.0"), want: "v1.2.3"},
		"installed":       {info: built("v0.1.0"), want: "v0.1.0"},
		"from a checkout": {info: built("(devel)"), want: "devel"},
		"unversioned":     {info: built(""), want: "devel"},
		"no information":  {want: "devel"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := versionOf(c.linked, c.info); got != c.want {
				t.Errorf("versionOf(%q, …) = %q, want %q", c.linked, got, c.want)
			}
		})
	}
}
