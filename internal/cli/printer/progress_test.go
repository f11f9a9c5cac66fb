package printer_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

func TestProgress_InAPipeIsALinePerTextAndTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr strings.Builder
		p := printer.StartProgress(printer.Streams{Err: &stderr}, false, 2*time.Second)
		p.Set("reading nodes")
		time.Sleep(1500 * time.Millisecond)
		if stderr.Len() > 0 {
			t.Errorf("wrote %q before the delay", stderr.String())
		}
		p.Count(15000)
		time.Sleep(12 * time.Second)
		p.Update("reading pods")
		p.Update("reading nodes")
		time.Sleep(12 * time.Second)
		p.Set("reading\x1b zones")
		p.Stop()
		p.Stop()
		p.Set("later")
		want := "reading nodes: 15000 so far\nreading nodes: 15000 so far (12s)\nreading nodes: 15000 so far (22s)\nreading� zones\n"
		if stderr.String() != want {
			t.Errorf("wrote %q, want %q", stderr.String(), want)
		}
	})
}

func TestProgress_OnATerminalIsOneLineThatVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr strings.Builder
		streams := printer.Streams{Err: &stderr, ErrIsTerminal: true, Size: func() (int, int) { return 20, 5 }}
		p := printer.StartProgress(streams, false, 0)
		p.Set("waiting for a gateway far away")
		time.Sleep(1500 * time.Millisecond)
		p.Print(&stderr, "one line that stays")
		p.Stop()
		got := stderr.String()
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, "\r\x1b[Kone line that stays\n") || !strings.Contains(got, "\rwaiting for a gatew…\x1b[K") {
			t.Errorf("wrote %q", got)
		}
	})
}

func TestProgress_QuietAndFastWriteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nowhere := printer.StartProgress(printer.Streams{}, false, 0)
		nowhere.Set("waiting")
		time.Sleep(time.Minute)
		nowhere.Stop()
		for _, quiet := range []bool{true, false} {
			var stderr strings.Builder
			p := printer.StartProgress(printer.Streams{Err: &stderr, ErrIsTerminal: true}, quiet, time.Second)
			p.Set("waiting")
			if quiet {
				time.Sleep(time.Minute)
			}
			p.Stop()
			if stderr.Len() > 0 {
				t.Errorf("quiet %t: wrote %q", quiet, stderr.String())
			}
		}
	})
}

// An age alone is no change, which would be a line for each look at the cluster.
func TestProgress_AnAgeAloneIsNoNewText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr strings.Builder
		p := printer.StartProgress(printer.Streams{Err: &stderr}, false, 0)
		for _, text := range []string{"wrote 58s ago", "wrote 1m ago", "wrote 1m2s ago", "does not run"} {
			p.Set(text)
		}
		p.Stop()
		if got, want := stderr.String(), "wrote 58s ago\ndoes not run\n"; got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}
