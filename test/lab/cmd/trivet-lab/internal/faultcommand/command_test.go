package faultcommand

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

// nothing breaks nothing.
type nothing struct{}

func (nothing) Break(context.Context, fault.Fault) (fault.Effect, error) {
	return fault.Effect{Text: "done\x1b[2J", Address: "10.0.0.1"}, nil
}
func (nothing) Restore(context.Context, fault.Fault) error { return nil }
func (nothing) Release(context.Context, fault.Fault) error { return nil }
func (nothing) SetSilentNodes(map[string]bool)             {}

// serve returns the environment of a person with a demo.
func serve(t *testing.T) map[string]string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "demo.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	c := faultcontroller.New(nothing{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, fault.NewSet(fault.Inventory{
			Zones: map[string][]string{"a": {"n1", "n2"}}, Replicas: []string{"leasesvc-1", "leasesvc-2"}, ClusterIPs: []string{"demo/web"},
		}))
	}()
	server := &http.Server{Handler: faultcontroller.Handler(c, func() float64 { return 0.25 }, "")}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		cancel()
		<-ended
	})
	return map[string]string{faultcontroller.SocketVariable: socket}
}

func command(streams printer.Streams) *cobra.Command {
	root := &cobra.Command{Use: "trivet-lab"}
	root.AddCommand(NewBreakCommand(streams, "trivet-lab", "trivet"), NewRestoreCommand(streams, "trivet-lab"))
	return root
}

func TestCommands_BreakListAndRestore(t *testing.T) {
	env := serve(t)
	for _, c := range []struct {
		line string
		code int
		want []string
	}{
		{"break --list", exit.OK, []string{"Nothing is broken. Break something: trivet-lab break node", "The demo uses 0.25 cores"}},
		{"break node --for 10m", exit.OK, []string{"node n1 is broken (silent): done", "It is restored at ", "  trivet explain node n1\n      within 18 s: ", "Restore: trivet-lab restore node n1\n"}},
		{"break service leasesvc --how kill", exit.OK, []string{"service leasesvc-2 is broken (kill)"}},
		{"break address", exit.OK, []string{"trivet repair plan not-allocated.ip-addresses.10.0.0.1"}},
		{"break --list", exit.OK, []string{"node n1  silent  broken  since ", "service leasesvc-2  kill  broken", "until trivet-lab restore"}},
		{"break node n1", exit.Usage, []string{"node n1 is broken already"}},
		{"break pods", exit.Usage, []string{"this demo has no pods to break"}},
		{"break disk", exit.Usage, []string{`"disk" is none of node, zone`}},
		{"break", exit.Usage, []string{"the KIND is missing"}},
		{"break node n1 n2", exit.Usage, []string{"one NAME at most"}},
		{"break node --for 2h", exit.Usage, []string{"--for"}},
		{"break --list node --how kill", exit.Usage, []string{"--list takes no arguments", "--how does not go with --list"}},
		{"restore --all node", exit.Usage, []string{"--all takes no arguments"}},
		{"restore", exit.Usage, []string{"the KIND is missing"}},
		{"restore node n1", exit.OK, []string{"node n1 is restored."}},
		{"restore --all", exit.OK, []string{"service leasesvc-2 is restored.", "address demo/web is restored."}},
		{"restore --all", exit.OK, []string{"Nothing is broken."}},
	} {
		got := commandtest.Run(t, commandtest.Terminal{Env: env}, command, strings.Fields(c.line)...)
		for _, want := range c.want {
			if !strings.Contains(got.Stdout+got.Stderr, want) {
				t.Errorf("trivet-lab %s: %s\nwant %q", c.line, got, want)
			}
		}
		if got.Code != c.code || strings.Contains(got.Stdout, "\x1b") {
			t.Errorf("trivet-lab %s: %s, want exit code %d and no control characters", c.line, got, c.code)
		}
	}
}

func TestCommands_WithoutADemoSayHowToStartOne(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"none": {}, "ended": {faultcontroller.SocketVariable: filepath.Join(t.TempDir(), "absent.sock")},
	} {
		got := commandtest.Run(t, commandtest.Terminal{Env: env}, command, "break", "node")
		if got.Code != exit.Undetermined || !strings.Contains(got.Stderr, "demo") {
			t.Errorf("%s: %s, want exit code %d", name, got, exit.Undetermined)
		}
	}
}

func TestCompletion_NamesTargetsAndWays(t *testing.T) {
	env := serve(t)
	for line, want := range map[string]string{
		"break service ": "leasesvc-1\nleasesvc-2\n", "break ": "node\nzone\nservice\napiserver\naddress\npods\n",
		"break service leasesvc --how ": "hang\nstop\nkill\n", "restore ": ":4",
	} {
		got := commandtest.Run(t, commandtest.Terminal{Env: env}, command, append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, " ")...)...)
		if !strings.HasPrefix(got.Stdout, want) {
			t.Errorf("completion of %q: %s, want %q", line, got, want)
		}
	}
}
