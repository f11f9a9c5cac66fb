package leasesvc_test

import (
	"fmt"
	"testing"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// A stream that its client ends in order is not lost; one whose client vanishes is.
func TestReceipts_TellsLostStreamsFromEndedOnes(t *testing.T) {
	f := newFixture(t, setup{})
	address := f.listen()
	holder := agent.Holder{Class: leasesvc.NodeClass, Name: "n1", BootID: "1"}
	a, err := agent.New(agent.Config{Targets: []string{address}, Dial: dialLoopback, Holders: []agent.Holder{holder}})
	if err != nil {
		t.Fatal(err)
	}
	stop := background(a.Run)
	awaitStreams := func(open int, lost uint64) {
		t.Helper()
		f.eventually(func() error {
			got := f.service.Receipts()
			if got.Streams != open || got.LostStreams != lost || got.Beats == 0 {
				return fmt.Errorf("receipts %+v, want %d open streams, %d lost ones and some beats", got, open, lost)
			}
			return nil
		})
	}
	awaitStreams(1, 0)
	a.Remove(holder)
	awaitStreams(0, 0)
	if err := a.Add(holder); err != nil {
		t.Fatal(err)
	}
	awaitStreams(1, 0)
	if err := stop(); err != nil {
		t.Error(err)
	}
	awaitStreams(0, 1)
}
