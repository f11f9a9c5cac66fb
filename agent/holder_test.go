package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"buf.build/go/protovalidate"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
)

// The server would end the stream for an invalid holder.
func TestAdd_AgreesWithTheAPI(t *testing.T) {
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
				t.Errorf("%+q: Add returns %v, protovalidate %v", h, err, allowed)
			}
		}
	}
}

func TestAdd_OneInvalidHolderAddsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(0)
		if err := a.Add(node("n2"), node("N3"), node("n 4")); err == nil || !strings.Contains(err.Error(), "N3") || !strings.Contains(err.Error(), "n 4") {
			t.Errorf("error %v, want both names", err)
		}
		advance(interval)
		expect(t, "messages", []message{{Registered: 1}, {At: interval, Beats: 1}}, s.received())
	})
}
