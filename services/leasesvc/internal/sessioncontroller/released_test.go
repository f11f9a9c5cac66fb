package sessioncontroller_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// A beat that another replica received before the release may arrive after it.
func TestRegister_ForwardedBeatDoesNotReopenAReleasedSession(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, *sessioncontroller.Controller){
		"with a session": func(t *testing.T, ctl *sessioncontroller.Controller) {
			register(t, ctl, node("a", "1"))
			ctl.CompleteRelease(beginRelease(t, ctl, node("a", "1")))
		},
		"without a session": func(t *testing.T, ctl *sessioncontroller.Controller) {
			if got := beginRelease(t, ctl, node("a", "1")); got != nil {
				t.Fatalf("release %+v of a holder without a session", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctl := newController()
				defer run(t, ctl)()
				begin(t, ctl)
				time.Sleep(59 * time.Second)
				forwarded := func(boot string) session.Outcome {
					batch := sessioncontroller.NewBatch()
					batch.Forwarded = true
					batch.Registrations = []sessioncontroller.Registration{{Holder: node("a", boot), Sequence: 3, Age: 59 * time.Second}}
					if err := ctl.Process(t.Context(), batch); err != nil {
						t.Fatal(err)
					}
					return batch.Results[0].Outcome
				}
				if got := forwarded("1"); got != session.Unknown {
					t.Errorf("the late beat of the released boot is %v, want Unknown", got)
				}
				if _, found, err := ctl.Get(t.Context(), node("a", "1").Key, 0); err != nil || found {
					t.Fatalf("after the release: session %t, error %v", found, err)
				}
				if got := register(t, ctl, node("a", "1"))[0].Outcome; got != session.Opened {
					t.Errorf("a registration of its own is %v, want Opened", got)
				}
				if got := forwarded("1"); !got.Accepted() {
					t.Errorf("a forwarded beat of the session is %v", got)
				}
			})
		})
	}
}
