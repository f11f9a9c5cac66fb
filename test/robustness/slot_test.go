package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// slot is one replica. A new process takes the place of a killed one.
type slot struct {
	*worldtest.Replica
	// audit is the path of the audit log.
	audit string

	mu sync.Mutex // guards changed
	// changed is called after each change of an object by the replica.
	changed func(faultproxy.Change)
}

// onChange sets what is called after each change of an object by the replica; nil is nothing.
func (s *slot) onChange(changed func(faultproxy.Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
}

// newSlot adds a slot whose process does not run yet.
func (w *world) newSlot(service string, number int, args ...string) {
	w.Helper()
	s := &slot{Replica: w.lab.Add(service, number, append([]string{"--authorization-mode=AlwaysAllow", "--max-connection-age=" + connectionAge.String()}, args...)...)}
	s.audit = filepath.Join(w.dir, s.Name+".audit")
	s.Change(func(c *childprocess.Config) {
		c.Path = w.binary
		c.Args = append(c.Args, "--advertise-address="+s.Calls.Addr(), "--audit-log-file="+s.audit)
	})
	s.ToKube.Record(func(c faultproxy.Change) {
		w.recordAct(s, c)
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if changed != nil {
			changed(c)
		}
	})
	w.slots = append(w.slots, s)
}

// get returns the body of a path of the admin server.
func (s *slot) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return s.Get(ctx, path)
}

// signal suspends the process or lets it go on. Another fault may have killed it.
func (s *slot) signal(send func(*childprocess.Child) error) error {
	if err := send(s.Process()); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// recordAct records a change that a replica made. Its object says which shard it needs: the status
// of a Node and its Lease that of the node, an EndpointSlice that of its Service. bootstrapsvc has
// one shard. The taints of a Node need the shard of the node or that of all zones, and Pods of dead
// nodes the latter: any shard of leasesvc counts for them.
func (w *world) recordAct(s *slot, c faultproxy.Change) {
	act := history.Act{
		Service: s.Service, Process: s.ProcessName(), Shard: history.AnyShard, Verb: c.Request.Verb,
		Object:   fmt.Sprintf("%s %s/%s", c.Request.Resource, c.Namespace, c.Name),
		Sent:     c.Received.Sub(w.began),
		Answered: c.Answered.Sub(w.began),
		Revision: c.Revision,
	}
	switch c.Request.Resource {
	case "events", "tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectreviews":
		return // They need no term.
	case "leases", "nodes":
		if s.Service == history.Leasesvc && (c.Namespace == nodeLeases || c.Request.Subresource == "status") {
			act.Shard = shardOfLease(c.Name, w.shards[s.Service])
		}
	case "endpointslices":
		if s.Service == history.Slicesvc {
			w.mu.Lock()
			w.sliceActs = append(w.sliceActs, sliceAct{act: act, namespace: c.Namespace, name: c.Name})
			w.mu.Unlock()
			return
		}
	}
	if s.Service == history.Bootstrapsvc {
		act.Shard = 0 // It has one.
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Acts = append(w.record.Acts, act)
}

// sliceAct is a change of an EndpointSlice whose Service the watch of etcd tells.
type sliceAct struct {
	act             history.Act
	namespace, name string
}

// actsOfSlices assigns the changes of EndpointSlices to shards. The caller holds mu.
func (w *world) actsOfSlices() []history.Act {
	service := map[string]string{}
	for _, v := range w.record.Slices {
		if v.Service != "" {
			service[v.Name] = v.Service
		}
	}
	var acts []history.Act
	for _, a := range w.sliceActs {
		if owner, known := service[a.namespace+"/"+a.name]; known {
			namespace, name, _ := strings.Cut(owner, "/")
			a.act.Shard = shard.Of(namespace, name, w.shards[history.Slicesvc])
		}
		acts = append(acts, a.act)
	}
	return acts
}

// shardOfLease returns the shard whose leader writes a Lease in kube-node-lease: that of a Node, or
// leasesvc's own, which has the shard in its name.
func shardOfLease(name string, shards int) int {
	if text, own := strings.CutPrefix(name, "trivet-leasesvc-"); own {
		if number, err := strconv.Atoi(text); err == nil {
			return number
		}
	}
	return shard.Of("node", name, shards)
}
