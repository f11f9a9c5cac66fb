package shadowcontroller

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	nodeshadow "github.com/trivet-dev/trivet/services/leasesvc/internal/shadow"
)

const (
	// passesPerSettling is how often an object is compared while a difference settles.
	passesPerSettling = 3
	minPeriod         = 200 * time.Millisecond
	maxPeriod         = 10 * time.Second
	// staleAfter is the age from which the last pass of node-health says nothing.
	staleAfter = 10 * time.Second
	// maxReads bounds the reads of one pass, which takes place every few seconds.
	maxReads = 200
	// maxPods bounds the ready Pods that are compared of one Node.
	maxPods = 20
	// readTimeout bounds all reads of a pass.
	readTimeout = 30 * time.Second
)

// Tracker gets what is found; *shadow.Tracker is one.
type Tracker interface {
	Observe(now time.Time, subject string, found []difference.Difference)
	Passed(now time.Time, compared, unread int, current func(subject string) bool)
	Doubt(now time.Time, why string)
	Idle()
	Verdict(v shadow.Verdict)
	Settle() time.Duration
}

// Config configures a Controller. All fields are required.
type Config struct {
	Tracker    Tracker
	NodeHealth *nodehealthcontroller.Controller
	// Snapshot returns the last pass of NodeHealth, or nil.
	Snapshot func() *nodehealthcontroller.Snapshot
	Reader   Reader
	// Pods returns the Pods on a Node from the cache.
	Pods   func(node string) []*corev1.Pod
	Logger *slog.Logger
}

// Controller is node-health in dry run.
type Controller struct {
	cfg    Config
	writer *writer
	// marks are by the Nodes of held shards; only the goroutine that compares uses them.
	marks map[types.UID]bool
}

// New returns a Controller. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg, writer: newWriter(cfg.Reader)} }

// Run judges and compares until ctx ends or NodeHealth fails. It replaces Writer and Events of the
// cluster by ones that do nothing.
func (c *Controller) Run(ctx context.Context, cluster nodehealthcontroller.Cluster, report func(error)) error {
	cluster.Writer, cluster.Events = c.writer, noEvents{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.cfg.NodeHealth.Run(ctx, cluster, report) })
	group.Go(func() error {
		every(ctx, c.cfg.Tracker.Settle(), c.pass)
		return nil
	})
	return group.Wait()
}

// every calls pass several times in each settling time until ctx ends.
func every(ctx context.Context, settle time.Duration, pass func(context.Context)) {
	ticker := time.NewTicker(min(max(settle/passesPerSettling, minPeriod), maxPeriod))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			pass(ctx)
		}
	}
}

func (c *Controller) pass(ctx context.Context) {
	now := time.Now()
	snapshot := c.cfg.Snapshot()
	switch {
	case snapshot == nil:
		c.cfg.Tracker.Doubt(now, "node-health has not made its first pass")
		return
	case now.Sub(snapshot.At.Wall) > staleAfter:
		c.cfg.Tracker.Doubt(now, fmt.Sprintf("the last pass of node-health was %s ago", now.Sub(snapshot.At.Wall).Round(time.Second)))
		return
	case snapshot.Suspension.Active():
		c.cfg.Tracker.Doubt(now, "node-health marks no node now: "+snapshot.Suspension.Message)
		return
	}
	p := pass{Controller: c, snapshot: snapshot, now: now, compared: map[string]bool{}, marks: map[types.UID]bool{}, silent: map[types.UID]bool{}}
	p.allDown = nodehealth.AllZonesDown(snapshot.Zones)
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	nodes, _ := snapshot.Page("", math.MaxInt, func(*nodehealthcontroller.Node) bool { return true })
	for _, node := range nodes {
		p.node(reading, node)
	}
	if ctx.Err() != nil {
		return
	}
	c.marks = p.marks
	c.writer.forget(func(node types.UID) bool { return p.silent[node] })
	c.cfg.Tracker.Passed(time.Now(), len(p.compared), p.unread, func(subject string) bool { return p.compared[subject] })
}

// pass is one comparison of all Nodes of held shards.
type pass struct {
	*Controller

	snapshot *nodehealthcontroller.Snapshot
	now      time.Time
	allDown  bool
	compared map[string]bool
	marks    map[types.UID]bool
	// silent are the Nodes whose verdict stands.
	silent        map[types.UID]bool
	reads, unread int
}

// node compares one Node. A Node that seems to differ is read past the cache first.
func (p *pass) node(ctx context.Context, node *nodehealthcontroller.Node) {
	p.recordVerdict(node)
	subject := "nodes/" + node.Object.Name
	in := p.input(node)
	if len(nodeshadow.Compare(in)) == 0 {
		p.compared[subject] = true
		p.cfg.Tracker.Observe(p.now, subject, nil)
		return
	}
	if p.reads+1+len(in.ReadyPods) > maxReads {
		p.unread++
		return
	}
	p.reads += 1 + len(in.ReadyPods)
	live, err := p.cfg.Reader.LiveNode(ctx, node.Object.Name)
	if err != nil || live == nil || live.UID != node.Object.UID {
		p.skip(subject, err)
		return
	}
	in.Object, in.UnreadyFor = live, unreadyFor(p.now, live)
	var ready []*corev1.Pod
	for _, pod := range in.ReadyPods {
		current, err := p.cfg.Reader.LivePod(ctx, pod)
		if err != nil {
			p.skip(subject, err)
			return
		}
		if current != nil {
			ready = append(ready, current)
		}
	}
	in.ReadyPods = ready
	p.compared[subject] = true
	p.cfg.Tracker.Observe(p.now, subject, nodeshadow.Compare(in))
}

// skip leaves a Node out of this pass: it cannot be read, or was deleted.
func (p *pass) skip(subject string, err error) {
	if err != nil {
		p.unread++
		p.cfg.Logger.Debug("cannot compare node", "node", subject, "error", err)
	}
}

func (p *pass) input(node *nodehealthcontroller.Node) nodeshadow.Node {
	in := nodeshadow.Node{
		Object: node.Object, Health: node.Assessment.Health, UnreadyFor: unreadyFor(p.now, node.Object), AllDown: p.allDown,
	}
	if zone, known := p.snapshot.Zone(node.Zone); known {
		in.Zone = zone.Zone
	}
	if at, judged := p.writer.judgedAt(node.Object.UID); judged {
		in.Judged, in.JudgedFor = true, p.now.Sub(at)
	}
	if node.Assessment.Health != nodehealth.Dead {
		return in
	}
	for _, pod := range p.cfg.Pods(node.Object.Name) {
		if nodehealth.ReadyOnUnreadyNode(node.Object, pod) && len(in.ReadyPods) < maxPods {
			in.ReadyPods = append(in.ReadyPods, pod)
		}
	}
	return in
}

// recordVerdict notes whether a Node is marked Unknown. If it was not in the last pass, both have
// found it silent: this loop when it would have marked it or, if that is still to come, at its
// deadline.
func (p *pass) recordVerdict(node *nodehealthcontroller.Node) {
	id := node.Object.UID
	marked := node.Ready == corev1.ConditionUnknown
	p.marks[id] = marked
	if health := node.Assessment.Health; health == nodehealth.Silent || marked && health == nodehealth.Dead {
		p.silent[id] = true
	}
	before, known := p.Controller.marks[id]
	if !known || before || !marked {
		return
	}
	ready := nodehealth.ConditionOf(node.Object, corev1.NodeReady)
	verdict := shadow.Verdict{Node: node.Object.Name, Written: ready.LastTransitionTime.Time}
	if at, judged := p.writer.judgedAt(id); judged {
		verdict.Trivet = at
	} else if deadline := node.Assessment.Deadline; deadline > 0 {
		verdict.Trivet = p.snapshot.Wall(deadline)
	} else {
		return
	}
	p.cfg.Tracker.Verdict(verdict)
}

func unreadyFor(now time.Time, node *corev1.Node) time.Duration {
	if ready := nodehealth.ConditionOf(node, corev1.NodeReady); ready != nil && ready.Status != corev1.ConditionTrue {
		return now.Sub(ready.LastTransitionTime.Time)
	}
	return 0
}
