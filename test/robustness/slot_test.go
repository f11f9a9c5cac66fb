package robustness

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/internal/child"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// stopTimeout is the stop timeout of a replica plus a margin for a loaded machine.
const stopTimeout = 40 * time.Second

// slot has a proxy on each link of one replica. A new process takes the place of a killed one.
type slot struct {
	service, name string
	// etcd, kube and calls are the links to etcd, to kube-apiserver, and from all callers.
	etcd  links
	calls *faultproxy.Relay
	kube  *faultproxy.KubeProxy
	// kubeLink has the bytes of the link to kube-apiserver.
	kubeLink *faultproxy.Relay
	// listen and admin are the addresses behind the proxies.
	listen, admin string
	args          []string
	log, audit    string
	binary        string

	mu      sync.Mutex // guards the following fields
	process *child.Process
	starts  int
	// program is the binary of the next process; empty: that of the world.
	program string
	// changed is called after each change of an object by the replica.
	changed func(faultproxy.Change)
}

// onChange sets what is called after each change of an object by the replica; nil is nothing.
func (s *slot) onChange(changed func(faultproxy.Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
}

// newSlot returns a slot whose process does not run yet.
func (w *world) newSlot(service string, number int, kube *rest.Config, args ...string) *slot {
	w.Helper()
	s := &slot{service: service, binary: w.binary, name: fmt.Sprintf("%s-%d", service, number), listen: testkit.FreeAddress(w.T), admin: testkit.FreeAddress(w.T)}
	s.log, s.audit = filepath.Join(w.dir, s.name+".log"), filepath.Join(w.dir, s.name+".audit")
	s.calls = faultproxy.NewRelay(w.T, s.listen)
	s.etcd = newLinks(w.T, w.cluster)
	s.kube = faultproxy.NewKube(w.T, kube)
	s.kube.Record(func(c faultproxy.Change) {
		w.recordAct(s, c)
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if changed != nil {
			changed(c)
		}
	})
	s.kubeLink = faultproxy.NewRelay(w.T, s.kube.Addr())
	ca, cert, key := w.cluster.EtcdFiles()
	secure, err := w.pki.flags(s.name, service)
	if err != nil {
		w.Fatal(err)
	}
	s.args = append([]string{
		"--cluster=" + clusterName, "--kubeconfig=" + s.kube.KubeconfigThrough(w.T, s.kubeLink.Addr()),
		"--etcd-endpoints=" + s.etcd.endpoints(), "--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + s.listen, "--advertise-address=" + s.calls.Addr(), "--admin-listen=" + s.admin, "--unlimited-loopback",
		"--audit-log-file=" + s.audit,
	}, slices.Concat(secure, args)...)
	w.slots = append(w.slots, s)
	return s
}

// start starts the next process of a slot.
func (s *slot) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		select {
		case <-s.process.Exited():
		default:
			return fmt.Errorf("%s is started while its process %d runs", s.name, s.process.ID())
		}
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // The child process has its own descriptor.
	command := exec.Command(s.executable(), s.args...)
	command.Env = append(os.Environ(), serviceVariable+"="+s.service)
	command.Stdout, command.Stderr = log, log
	process, err := child.Start(command)
	if err != nil {
		return err
	}
	s.process = process
	s.starts++
	return nil
}

// executable returns the binary of the next process. The caller holds mu.
func (s *slot) executable() string { return cmp.Or(s.program, s.binary) }

// processName names the present process of a slot. The next one has another name.
func (s *slot) processName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%s#%d", s.name, s.starts)
}

func (s *slot) running() *child.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// signal sends a signal. Another fault may have killed the process.
func (s *slot) signal(signal syscall.Signal) error {
	if err := s.running().Signal(signal); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// stop sends SIGTERM and returns an error unless the process exits with code 0.
func (s *slot) stop() error {
	process := s.running()
	if process == nil {
		return nil
	}
	if err := process.Stop(stopTimeout); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

func (s *slot) kill() {
	if process := s.running(); process != nil {
		process.Kill()
	}
}

// lastLines returns the end of a log.
func (s *slot) lastLines() string {
	file, err := os.Open(s.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-6000), io.SeekStart) // The whole log is as good.
	}
	text, _ := io.ReadAll(file)
	return string(text)
}

// recordAct records a change that a replica made. Its object says which shard it needs: the status
// of a Node and its Lease that of the node, an EndpointSlice that of its Service. bootstrapsvc has
// one shard. The taints of a Node need the shard of the node or that of all zones, and Pods of dead
// nodes the latter: any shard of leasesvc counts for them.
func (w *world) recordAct(s *slot, c faultproxy.Change) {
	act := history.Act{
		Service: s.service, Process: s.processName(), Shard: history.AnyShard, Verb: c.Request.Verb,
		Object:   fmt.Sprintf("%s %s/%s", c.Request.Resource, c.Namespace, c.Name),
		Sent:     c.Received.Sub(w.began),
		Answered: c.Answered.Sub(w.began),
		Revision: c.Revision,
	}
	switch c.Request.Resource {
	case "events", "tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectreviews":
		return // They need no term.
	case "leases", "nodes":
		if s.service == history.Leasesvc && (c.Namespace == nodeLeases || c.Request.Subresource == "status") {
			act.Shard = shard.Of("node", c.Name, w.shards[s.service])
		}
	case "endpointslices":
		if s.service == history.Slicesvc {
			w.mu.Lock()
			w.sliceActs = append(w.sliceActs, sliceAct{act: act, namespace: c.Namespace, name: c.Name})
			w.mu.Unlock()
			return
		}
	}
	if s.service == history.Bootstrapsvc {
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
