package apiservers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestReadiness_After(t *testing.T) {
	const threshold = 3
	cases := map[string]struct {
		outcomes string // "+" is a success, "-" a failure
		want     Readiness
	}{
		"never probed":                    {outcomes: "", want: Readiness{}},
		"the first success is enough":     {outcomes: "+", want: Readiness{Ready: true}},
		"no credit before the first":      {outcomes: "-", want: Readiness{Failures: 1}},
		"two failures are forgiven":       {outcomes: "+--", want: Readiness{Ready: true, Failures: 2}},
		"the third is one too many":       {outcomes: "+---", want: Readiness{Failures: 3}},
		"a success wipes the slate":       {outcomes: "+--+--", want: Readiness{Ready: true, Failures: 2}},
		"back at once after a long spell": {outcomes: "+-----+", want: Readiness{Ready: true}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var verdict Readiness
			want := test.want
			for i, letter := range test.outcomes {
				outcome := ProbeResult{Time: time.Unix(int64(i), 0), OK: letter == '+', Detail: string(letter)}
				verdict = verdict.After(outcome, ReadinessThresholds{Failures: threshold})
				want.Last = outcome
				if outcome.OK {
					want.LastSuccess = outcome.Time
				}
			}
			if diff := cmp.Diff(want, verdict); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadiness_SilenceIsBorneForAWhileAndARefusalIsNot(t *testing.T) {
	patience := ReadinessThresholds{Failures: 3, Silence: 8 * time.Second}
	cases := map[string]struct {
		outcomes string // every three seconds: "+" is a success, "-" a refusal, "." silence
		want     bool
	}{
		"silent for six seconds":                         {outcomes: "+..", want: true},
		"silent three times, for nine seconds":           {outcomes: "+..."},
		"refused three times":                            {outcomes: "+---"},
		"refused after a silence that was borne":         {outcomes: "+..-"},
		"silent after two refusals, for nine seconds":    {outcomes: "+--."},
		"silent, then well, then silent for six seconds": {outcomes: "+..+..", want: true},
		"silence makes nobody ready":                     {outcomes: "..."},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var verdict Readiness
			for i, letter := range test.outcomes {
				at := time.Unix(int64(3*i), 0)
				verdict = verdict.After(ProbeResult{Time: at, OK: letter == '+', Silent: letter == '.'}, patience)
			}
			if verdict.Ready != test.want {
				t.Errorf("ready = %t, want %t: %+v", verdict.Ready, test.want, verdict)
			}
		})
	}
	early := Readiness{}.After(ProbeResult{Time: time.Unix(0, 0), OK: true}, patience)
	for at := range int64(4) {
		early = early.After(ProbeResult{Time: time.Unix(at, 0), Silent: true}, patience)
	}
	if !early.Ready || early.Failures != 4 {
		t.Errorf("verdict = %+v, want four quick silences borne: they lasted three seconds only", early)
	}
}

func TestReadiness_ReadyMeansASuccessWithinTheLastOutcomes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		threshold := rapid.IntRange(1, 5).Draw(t, "threshold")
		outcomes := rapid.SliceOf(rapid.Bool()).Draw(t, "outcomes")
		var verdict Readiness
		for _, ok := range outcomes {
			verdict = verdict.After(ProbeResult{OK: ok}, ReadinessThresholds{Failures: threshold})
		}
		recent := false
		for i := max(0, len(outcomes)-threshold); i < len(outcomes); i++ {
			recent = recent || outcomes[i]
		}
		if verdict.Ready != recent {
			t.Fatalf("ready = %t after %v with threshold %d", verdict.Ready, outcomes, threshold)
		}
	})
}
