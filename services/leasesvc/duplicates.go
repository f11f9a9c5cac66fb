package leasesvc

import (
	"context"
	"maps"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// duplicateEventInterval is the time between two Events about the boots of one Node.
	// kube-apiserver keeps an Event for an hour.
	duplicateEventInterval = 30 * time.Minute
	// maxDuplicateReports is how many reports wait. Further ones are dropped: status and log have
	// them too.
	maxDuplicateReports = 64
)

// duplicateEvents sends an Event for each Node of which two boots send heartbeats.
type duplicateEvents struct {
	kube    kubernetes.Interface
	store   *nodestore.Store
	isNode  []bool // by session.ClassID
	reports chan sessioncontroller.DuplicateBoots
	// sent are the times of the last Events. It belongs to run.
	sent map[session.Key]time.Time
}

func newDuplicateEvents(s *Service, kube kubernetes.Interface) *duplicateEvents {
	d := &duplicateEvents{
		kube: kube, store: s.nodeHealth.store, reports: make(chan sessioncontroller.DuplicateBoots, maxDuplicateReports),
		sent: map[session.Key]time.Time{},
	}
	for _, c := range s.cfg.classes() {
		d.isNode = append(d.isNode, c.OwnedByNode)
	}
	return d
}

// report takes a report. It never blocks.
func (d *duplicateEvents) report(boots sessioncontroller.DuplicateBoots) {
	if !d.isNode[boots.Holder.Class] {
		return
	}
	select {
	case d.reports <- boots:
	default:
	}
}

// run sends Events until ctx ends.
func (d *duplicateEvents) run(ctx context.Context) error {
	events := nodestore.NewEvents(ctx, d.kube, ServiceName)
	defer events.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case boots := <-d.reports:
			d.send(events, boots, time.Now())
		}
	}
}

// send sends at most one Event for a Node in each duplicateEventInterval.
func (d *duplicateEvents) send(events *nodestore.Events, boots sessioncontroller.DuplicateBoots, now time.Time) {
	if last, sent := d.sent[boots.Holder]; sent && now.Sub(last) < duplicateEventInterval {
		return
	}
	uid, err := d.store.UID(boots.Holder.Name)
	if err != nil || uid == "" {
		return // there is no such Node, or the Nodes are not read yet
	}
	maps.DeleteFunc(d.sent, func(_ session.Key, last time.Time) bool { return now.Sub(last) >= duplicateEventInterval })
	d.sent[boots.Holder] = now
	events.DuplicateHolder(boots.Holder.Name, uid, boots.Current, boots.Other)
}
