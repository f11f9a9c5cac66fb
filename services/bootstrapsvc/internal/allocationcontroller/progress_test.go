package allocationcontroller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A policy refuses the creates of many addresses with a long message. The repair is stored with
// each result, and its attempts a few times per minute.
func TestProgress_ManyRefusedStepsAreFewWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for i := range 200 {
			w.addService(fmt.Sprint("refused", i), fmt.Sprint("10.0.1.", i+1))
		}
		w.onWrite(func(write string, after bool) error {
			if strings.HasPrefix(write, "create 10.0.1.") && !after {
				return errors.New("denied by a policy: " + strings.Repeat("because ", 1000))
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(10 * time.Minute)
		if writes := w.countWrites("progress"); writes < 2 || writes > 2*10*12 {
			t.Errorf("%d writes of progress of two repairs in ten minutes, want at most one in 5 s each", writes)
		}
		for _, repair := range w.repairs(t) {
			for number, progress := range repair.Progress.Steps {
				if len(progress.Error) > maxError+3 || !strings.Contains(progress.Error, "policy") {
					t.Errorf("step %d has an error of %d bytes: %.40s", number, len(progress.Error), progress.Error)
				}
			}
		}
	})
}
