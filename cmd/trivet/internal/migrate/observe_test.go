package migrate

import (
	"slices"
	"testing"
)

// A kube-apiserver that stops deletes its identity Lease, and one that is killed leaves it.
func TestObserver_RemembersKubeAPIServers(t *testing.T) {
	var seen programsSeen
	for _, look := range []struct{ running, ended, want []string }{
		{[]string{"cp1", "cp2"}, []string{"cp3"}, []string{"cp3"}},
		{[]string{"cp2"}, nil, []string{"cp1", "cp3"}},
		{[]string{"cp2", "cp1", "cp3"}, nil, nil},
	} {
		if got := seen.stopped(look.running, look.ended); !slices.Equal(got, look.want) {
			t.Errorf("%v run and %v have ended: stopped are %v, want %v", look.running, look.ended, got, look.want)
		}
	}
}
