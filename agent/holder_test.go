package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"buf.build/go/protovalidate"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
)

// A holder that the server would end the stream for must not get there.
func TestAdd_TakesWhatTheAPIAllowsAndNothingElse(t *testing.T) {
	for _, text := range []string{
		"", "n", "n1", "N1", "-n", "n-", "n.", ".n", "n..m", "n.m", "n_m", "n m", "n\n", "n:m", "n/m", "é", "n\x00", "\xff",
		strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("n", 65), strings.Repeat("n", 253), strings.Repeat("n", 254),
	} {
		for _, h := range []agent.Holder{
			{Class: text, Name: "n", BootID: "1"}, {Class: "node", Name: text, BootID: "1"}, {Class: "node", Name: "n", BootID: text},
		} {
			allowed := protovalidate.Validate(&leasev1.Holder{Class: h.Class, Name: h.Name, BootId: h.BootID})
			_, err := agent.New(agent.Config{Targets: []string{"a"}, Dial: network{}.dial, Holders: []agent.Holder{h}})
			if (err == nil) != (allowed == nil) {
				t.Errorf("%+q: Add says %v, the API says %v", h, err, allowed)
			}
		}
	}
}

func TestAdd_WithOneHolderThatIsNotAllowedAddsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		after(0)
		if err := a.Add(node("n2"), node("N3"), node("n 4")); err == nil || !strings.Contains(err.Error(), "N3") || !strings.Contains(err.Error(), "n 4") {
			t.Errorf("error %v, want both names", err)
		}
		after(interval)
		expect(t, "messages", []message{{Introduced: 1}, {At: interval, Beats: 1}}, s.heard())
	})
}
