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
		results string // "+" is a success, "-" a failure
		want    Readiness
	}{
		"never probed":                            {results: "", want: Readiness{}},
		"the first success is enough":             {results: "+", want: Readiness{Ready: true}},
		"a server without a success is not ready": {results: "-", want: Readiness{Failures: 1}},
		"two failures are tolerated":              {results: "+--", want: Readiness{Ready: true, Failures: 2}},
		"the third failure is one too many":       {results: "+---", want: Readiness{Failures: 3}},
		"a success resets the count":              {results: "+--+--", want: Readiness{Ready: true, Failures: 2}},
		"one success after many failures":         {results: "+-----+", want: Readiness{Ready: true}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var readiness Readiness
			want := test.want
			for i, letter := range test.results {
				result := ProbeResult{Time: time.Unix(int64(i), 0), OK: letter == '+', Detail: string(letter)}
				readiness = readiness.After(result, ReadinessThresholds{Failures: threshold})
				want.Last = result
				if result.OK {
					want.LastSuccess = result.Time
				}
			}
			if diff := cmp.Diff(want, readiness); diff != "" {
				t.Errorf("readiness (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadiness_SilenceIsToleratedLongerThanRefusedConnections(t *testing.T) {
	thresholds := ReadinessThresholds{Failures: 3, Silence: 8 * time.Second}
	cases := map[string]struct {
		results string // every three seconds: "+" is a success, "-" a refused connection, "." silence
		want    bool
	}{
		"silent for six seconds":                                 {results: "+..", want: true},
		"silent three times, for nine seconds":                   {results: "+..."},
		"connection refused three times":                         {results: "+---"},
		"connection refused after tolerated silence":             {results: "+..-"},
		"silent after two refused connections, for nine seconds": {results: "+--."},
		"silent, then ready, then silent for six seconds":        {results: "+..+..", want: true},
		"silence makes no server ready":                          {results: "..."},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var readiness Readiness
			for i, letter := range test.results {
				at := time.Unix(int64(3*i), 0)
				readiness = readiness.After(ProbeResult{Time: at, OK: letter == '+', Silent: letter == '.'}, thresholds)
			}
			if readiness.Ready != test.want {
				t.Errorf("ready = %t, want %t: %+v", readiness.Ready, test.want, readiness)
			}
		})
	}
	early := Readiness{}.After(ProbeResult{Time: time.Unix(0, 0), OK: true}, thresholds)
	for at := range int64(4) {
		early = early.After(ProbeResult{Time: time.Unix(at, 0), Silent: true}, thresholds)
	}
	if !early.Ready || early.Failures != 4 {
		t.Errorf("readiness = %+v, want four quick timeouts tolerated: they lasted only three seconds", early)
	}
}

func TestReadiness_ReadyMeansASuccessWithinTheLastProbes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		threshold := rapid.IntRange(1, 5).Draw(t, "threshold")
		results := rapid.SliceOf(rapid.Bool()).Draw(t, "results")
		var readiness Readiness
		for _, ok := range results {
			readiness = readiness.After(ProbeResult{OK: ok}, ReadinessThresholds{Failures: threshold})
		}
		recent := false
		for i := max(0, len(results)-threshold); i < len(results); i++ {
			recent = recent || results[i]
		}
		if readiness.Ready != recent {
			t.Fatalf("ready = %t after %v with threshold %d", readiness.Ready, results, threshold)
		}
	})
}
