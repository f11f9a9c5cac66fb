package nodehealthcontroller

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// publish shows readers what the pass has come to.
func (w *watch) publish(plan *nodehealth.Plan) {
	pass := Pass{
		At: w.now, Nodes: w.subjects, NodeSet: w.members + 1, Zones: plan.Zones, MassSilence: plan.MassSilence,
		Result: func(s *nodehealth.NodeState) Result { return w.view(plan, s) },
	}
	if blindness, blind := w.memory.Blind(); blind {
		pass.Blindness = &blindness
	}
	for _, held := range w.held {
		if held != nil {
			pass.Epoch = max(pass.Epoch, held.Epoch())
		}
	}
	w.Publisher.Publish(pass)
}

func (w *watch) view(plan *nodehealth.Plan, s *nodehealth.NodeState) Result {
	if !s.Ownership.Held {
		return Result{}
	}
	v := Result{
		Held: true, Epoch: w.held[s.Ownership.Shard].Epoch(), Session: s.Session(),
		Assessment: w.Rules.Assess(w.now.Instant, w.memory, s),
	}
	if v.Session == nodehealth.SessionAlive {
		v.Assessment.Heard = 0
	}
	v.HeldBy = plan.HeldBy(w.memory, s, v.Assessment)
	return v
}
