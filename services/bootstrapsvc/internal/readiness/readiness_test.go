package readiness

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestVerdict_After(t *testing.T) {
	const threshold = 3
	cases := map[string]struct {
		outcomes string // "+" is a success, "-" a failure
		want     Verdict
	}{
		"never probed":                    {outcomes: "", want: Verdict{}},
		"the first success is enough":     {outcomes: "+", want: Verdict{Ready: true}},
		"no credit before the first":      {outcomes: "-", want: Verdict{Failures: 1}},
		"two failures are forgiven":       {outcomes: "+--", want: Verdict{Ready: true, Failures: 2}},
		"the third is one too many":       {outcomes: "+---", want: Verdict{Failures: 3}},
		"a success wipes the slate":       {outcomes: "+--+--", want: Verdict{Ready: true, Failures: 2}},
		"back at once after a long spell": {outcomes: "+-----+", want: Verdict{Ready: true}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var verdict Verdict
			want := test.want
			for i, letter := range test.outcomes {
				outcome := Outcome{Time: time.Unix(int64(i), 0), OK: letter == '+', Detail: string(letter)}
				verdict = verdict.After(outcome, threshold)
				want.Last = outcome
			}
			if diff := cmp.Diff(want, verdict); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdict_ReadyMeansASuccessWithinTheLastOutcomes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		threshold := rapid.IntRange(1, 5).Draw(t, "threshold")
		outcomes := rapid.SliceOf(rapid.Bool()).Draw(t, "outcomes")
		var verdict Verdict
		for _, ok := range outcomes {
			verdict = verdict.After(Outcome{OK: ok}, threshold)
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
