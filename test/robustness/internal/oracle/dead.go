package oracle

import (
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// observing returns the parts of a claim in which its holder may observe a node, in order. While
// etcd has no quorum it may have stopped, and a self-check that hangs and fails delays a mark. A
// holder that hears nothing still reads the Leases of kubelets.
func observing(h history.History, c history.Claim, kubelet bool) []history.Down {
	h.Downs = slices.Clone(h.Downs)
	for i := range h.Windows {
		w := &h.Windows[i]
		if unreached := w.Unreached != "" && strings.HasPrefix(c.Holder, w.Unreached); w.NoQuorum || w.WritesHang || unreached && !kubelet {
			h.Downs = append(h.Downs, history.Down{Process: c.Holder, From: w.From, To: w.To})
		}
	}
	return running(h, c)
}

// Observation is how leaders observe silent nodes: what is promised of the time until one is
// marked.
type Observation struct {
	// Grace is the silence that leaders observe in all, Least what the one observes that marks.
	Grace, Least time.Duration
	// Quiet is the silence from which on the next leader inherits it. Unstored is how much of it,
	// at most, a leader has observed and not stored at its end.
	Quiet, Unstored time.Duration
	// Stopped is how long before the end of its term a leader may have stopped.
	Stopped time.Duration
}

// markedBy returns when a node that died must be marked: as soon as a leader of its shard has
// observed it for Least, and all leaders for Grace together. The result is the end of the history
// if no leader lasted for so long.
func (o Observation) markedBy(h history.History, life history.Life) time.Duration {
	died, inherited := life.To, time.Duration(0)
	number := shard.Of("node", life.Node, h.Shards[history.Leasesvc])
	for _, claim := range claimsByShard(h)[shardOf{history.Leasesvc, number}] {
		for _, term := range observing(h, claim, life.Kubelet) {
			from := max(term.From, died)
			need := o.Grace
			if inherited > 0 {
				need = max(o.Grace-inherited, o.Least)
			}
			if from+need+o.Stopped <= term.To {
				return from + need
			}
			if observed := inherited + term.To - from - o.Unstored; observed >= o.Quiet {
				inherited = max(inherited, observed)
			}
		}
	}
	return h.End
}
