package nodehealthcontroller

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// publish shows readers what the pass has come to.
func (w *watch) publish(plan *nodehealth.Plan) {
	pass := Pass{
		At: w.now, Subjects: w.subjects, Members: w.members + 1, Zones: plan.Zones, Doubted: plan.Doubted,
		View: func(s *nodehealth.Subject) View { return w.view(plan, s) },
	}
	if blindness, blind := w.memory.Blind(); blind {
		pass.Blindness = &blindness
	}
	for _, held := range w.held {
		if held != nil {
			pass.Epoch = max(pass.Epoch, held.Epoch())
		}
	}
	w.Census.Publish(pass)
}

func (w *watch) view(plan *nodehealth.Plan, s *nodehealth.Subject) View {
	if !s.Charge.Held {
		return View{}
	}
	v := View{
		Held: true, Epoch: w.held[s.Charge.Shard].Epoch(), Session: s.Session(),
		Judgement: w.Rules.Judge(w.now.Instant, w.memory, s),
	}
	if v.Session == nodehealth.SessionAlive {
		v.Judgement.Heard = 0
	}
	v.HeldBy = plan.WhyHeld(w.memory, s, v.Judgement)
	return v
}
