package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestCommand_UnknownNamesSimilarOnes(t *testing.T) {
	for line, want := range map[string]string{
		"nods":   "try: trivet nodes",
		"sttus":  "try: trivet status",
		"foobar": "try: trivet --help",
		"up":     "try: trivet-lab up",
		"break":  "try: trivet-lab break",
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

func TestAsPlugin_TextsNameKubectl(t *testing.T) {
	var reports strings.Builder
	plugin := func(streams printer.Streams) *cobra.Command {
		root := command(streams)
		exit.Report(asPlugin(root, &reports), exit.UnknownCommand(root, []string{"nods"}))
		return root
	}
	for _, line := range []string{"--help", "nodes --help", "repair plan --help", "status --help"} {
		got := commandtest.Run(t, commandtest.Terminal{}, plugin, strings.Fields(line)...)
		text := strings.ReplaceAll(got.Stdout, "kubectl trivet", "")
		if got.Code != exit.OK || !strings.Contains(got.Stdout, "Usage:\n  kubectl trivet") {
			t.Errorf("kubectl trivet %s: %s", line, got)
		}
		for _, name := range []string{"trivet nodes", "trivet repair", "trivet status", "trivet explain", "trivet [command]"} {
			if strings.Contains(text, name) {
				t.Errorf("kubectl trivet %s says %q without kubectl: %s", line, name, got)
			}
		}
	}
	if got := reports.String(); strings.Count(got, "try: kubectl trivet nodes\n") != strings.Count(got, "try: ") || got == "" {
		t.Errorf("reports: %s", got)
	}
	for executable, want := range map[string]bool{
		"/usr/bin/kubectl-trivet": true, "kubectl-trivet.exe": true, "bin/trivet": false, "/kubectl-trivet/trivet": false,
	} {
		if isPlugin(executable) != want {
			t.Errorf("isPlugin(%q) = %t", executable, !want)
		}
	}
}
