package nodeagent

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
)

// TestTrimMemory_ReturnsWhatABurstHeld fails with the runtime alone, which keeps freed memory for
// minutes.
func TestTrimMemory_ReturnsWhatABurstHeld(t *testing.T) {
	const burst = 64 << 20
	block := make([]byte, burst)
	for i := range block {
		block[i] = 1
	}
	before := heldMemory()
	runtime.KeepAlive(block)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), trimPeriod+trimPeriod/2) // of the bubble's clock
		defer cancel()
		if err := trimMemory(ctx); err != nil {
			t.Error(err)
		}
	})
	if after := heldMemory(); after > before-burst/2 {
		t.Errorf("%d MiB are held after the trim, %d MiB before it", after>>20, before>>20)
	}
}
