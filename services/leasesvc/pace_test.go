package leasesvc

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// An agent whose holders came in four messages, or are of four classes, sends four messages in every interval.
func TestPace_HoldersThatBeatInMessagesOfTheirOwnAreNotHasty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(t, nil)
		c := s.open(t)
		const messages = 4
		for i := range messages {
			say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Holders: crowd(i, 1)})
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		for round := range 5 {
			for i := range uint32(messages) {
				got := say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Handles: []uint32{i + 1}})
				if got.Directive != 0 || got.Grant == nil {
					t.Fatalf("round %d, message %d: %v", round, i, got)
				}
				time.Sleep(time.Second)
			}
			time.Sleep(time.Second)
		}
		var told []string
		for range hasty + 1 {
			got := say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Handles: []uint32{1}})
			told = append(told, got.Directive.String())
			time.Sleep(time.Second)
		}
		const fine, slow = "DIRECTIVE_UNSPECIFIED", "DIRECTIVE_SLOW_DOWN"
		if fmt.Sprint(told) != fmt.Sprint([]string{fine, fine, fine, fine, slow}) {
			t.Errorf("one that beats every second was told %v", told)
		}
	})
}
