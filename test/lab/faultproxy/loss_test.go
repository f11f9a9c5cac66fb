package faultproxy

import (
	"testing"
	"time"
)

func TestLoss_LosesItsShareAndStaysWithinItsTimes(t *testing.T) {
	loss := Loss{Delay: 200 * time.Millisecond, Jitter: 100 * time.Millisecond, Share: 0.1, Least: time.Second, Most: 2 * time.Second}
	const packets = 20_000
	lost := 0
	for range packets {
		lag := loss.lag()
		if lag < 100*time.Millisecond || lag > 300*time.Millisecond && lag < 1100*time.Millisecond || lag > 2300*time.Millisecond {
			t.Fatalf("a packet is late by %v", lag)
		}
		if lag > time.Second {
			lost++
		}
	}
	if lost < packets*8/100 || lost > packets*12/100 { // ten standard deviations
		t.Errorf("%d of %d packets were lost, want a tenth", lost, packets)
	}
	if lag := (Loss{Jitter: time.Second}).lag(); lag < 0 {
		t.Errorf("a packet arrives %v before it was sent", -lag)
	}
}
