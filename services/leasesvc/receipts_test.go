package leasesvc_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// A stream that its client ends in order is not lost; one whose client vanishes is.
func TestReceipts_TellsLostStreamsFromEndedOnes(t *testing.T) {
	t.Parallel()
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

// A connection that was refused because all are too many may have been one of a living node.
func TestReceipts_CountRefusedConnections(t *testing.T) {
	t.Parallel()
	limiter, err := connlimit.New(connlimit.Config{MaxConnections: 1}, nil, "grpc")
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, setup{limiter: limiter})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := limiter.Listener(plain)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
		}
	}()
	for range 3 {
		if c, err := net.Dial("tcp", plain.Addr().String()); err == nil { // else it is refused already
			t.Cleanup(func() { c.Close() })
		}
	}
	f.eventually(func() error {
		if refused := f.service.Receipts().Refused; refused != 2 {
			return fmt.Errorf("%d refused connections and holders, want the 2 connections above the limit", refused)
		}
		return nil
	})
}
