package history

import "testing"

func TestBelowFloor_CountsTheTrafficBeforeTheFault(t *testing.T) {
	h := History{
		End: 60 * s, Windows: []Window{{From: 5 * s, To: 6 * s}, {Fault: "a", Step: 1, From: 20 * s, To: 25 * s}},
		Pods:     []PodVersion{{At: 5 * s}, {At: 15 * s}, {At: 19 * s}, {At: 21 * s}},
		Renewals: []Renewal{{At: 12 * s}},
		Answers:  []Answer{{Answered: 12 * s}, {Answered: 13 * s, Failed: "no"}},
	}
	floor := Floor{Over: 10 * s, Pods: 2, Renewals: 1, Answers: 1}
	if below := h.BelowFloor(1, floor); len(below) > 0 {
		t.Errorf("below the floor: %v", below)
	}
	for name, higher := range map[string]Floor{
		"Pods":     {Over: 10 * s, Pods: 3},
		"Services": {Over: 10 * s, Services: 1},
		"Renewals": {Over: 5 * s, Renewals: 1},
		"Answers":  {Over: 10 * s, Answers: 2},
	} {
		if below := h.BelowFloor(1, higher); len(below) != 1 {
			t.Errorf("%s: below the floor: %v, want one count", name, below)
		}
	}
}
