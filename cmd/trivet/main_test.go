package main

import (
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
)

func TestCommand_UnknownNamesSimilarOnes(t *testing.T) {
	for line, want := range map[string]string{
		"nods":   "try: trivet nodes",
		"sttus":  "try: trivet status",
		"foobar": "try: trivet --help",
	} {
		got := commandtest.Run(t, commandtest.Terminal{}, command, line)
		if got.Code != exit.Usage || got.Stdout != "" || !strings.Contains(got.Stderr, want) {
			t.Errorf("trivet %s: %s; want exit code %d and %q", line, got, exit.Usage, want)
		}
	}
	if got := commandtest.Run(t, commandtest.Terminal{}, command); got.Code != exit.OK || !strings.Contains(got.Stdout, "Available Commands") {
		t.Errorf("trivet: %s, want the help", got)
	}
}

func TestCommand_KnowsSingularsAndPlurals(t *testing.T) {
	for _, name := range []string{"node", "no", "lease", "slice", "svc", "service", "services", "apiserver", "finding", "zone", "shard", "repairs"} {
		if got := commandtest.Run(t, commandtest.Terminal{}, command, name, "--help"); got.Code != exit.OK {
			t.Errorf("trivet %s --help: %s", name, got)
		}
	}
}
