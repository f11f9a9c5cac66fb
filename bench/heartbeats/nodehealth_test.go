package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeWith(name string, status corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}},
	}
}

// Of three nodes, the first two are silenced and marked Unknown 20 s after their last beat. The
// third is marked Unknown wrongly.
func TestObserve_TimesFromTheLastSignToTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verdicts{unknown: map[string]time.Time{}}
		var nodes []*simulatedNode
		for _, name := range []string{"a", "b", "c"} {
			var declare *time.Timer
			beat := func(context.Context) error {
				if declare != nil {
					declare.Stop()
				}
				declare = time.AfterFunc(20*time.Second, func() { v.note(nodeWith(name, corev1.ConditionUnknown), time.Now()) })
				return nil
			}
			p := &simulatedNode{name: name, pace: 5 * time.Second, beat: beat}
			p.start(t.Context())
			nodes = append(nodes, p)
		}
		v.note(nodeWith("c", corev1.ConditionTrue), time.Now())
		time.Sleep(12 * time.Second)
		s := silencing{count: 2, apart: time.Second}
		times, err := v.observe(t.Context(), nodes, s)
		if want := []time.Duration{20 * time.Second, 20 * time.Second}; !slices.Equal(times, want) || err != nil {
			t.Errorf("noticed after %v, %v; want %v", times, err, want)
		}
		if wrong := v.wronglyMarked(nodes, s); wrong != 0 {
			t.Errorf("%d others count as marked Unknown", wrong)
		}
		v.note(nodeWith("c", corev1.ConditionUnknown), time.Now())
		if wrong := v.wronglyMarked(nodes, s); wrong != 1 {
			t.Errorf("%d others count as marked Unknown, want c", wrong)
		}
		if err := stopAll(nodes); err != nil {
			t.Error(err)
		}
	})
}

func TestStopAll_ReturnsTheErrorOfANodeThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		p := &simulatedNode{name: "a", pace: time.Second, beat: func(context.Context) error { return broken }}
		p.start(t.Context())
		time.Sleep(2 * time.Second)
		if err := stopAll([]*simulatedNode{p}); !errors.Is(err, broken) {
			t.Errorf("error %v, want that of the beat", err)
		}
	})
}
