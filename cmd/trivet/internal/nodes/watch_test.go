package nodes_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

type events = []*gatewayv1.WatchNodeHealthResponse

func added(nodes ...*leasev1.NodeHealth) events {
	var all events
	for _, n := range nodes {
		all = append(all, &gatewayv1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_TYPE_ADDED, Node: n})
	}
	return all
}

func modified(n *leasev1.NodeHealth) *gatewayv1.WatchNodeHealthResponse {
	return &gatewayv1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_TYPE_MODIFIED, Node: n}
}

func deleted(name string) *gatewayv1.WatchNodeHealthResponse {
	return &gatewayv1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_TYPE_DELETED, Node: &leasev1.NodeHealth{Name: "nodes/" + name}}
}

func bookmark(missing ...*gatewayv1.SourceStatus) *gatewayv1.WatchNodeHealthResponse {
	return &gatewayv1.WatchNodeHealthResponse{Type: leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK, Missing: missing}
}

// restartWatches returns a watch with changes, and one after a restart: node-2 was deleted and
// node-9 added meanwhile.
func restartWatches() []commandtest.Watch {
	all := everyHealth()
	beat := proto.CloneOf(all[0])
	beat.SignTime, beat.ResourceVersion, beat.Epoch = commandtest.Ago(0), "813", 18300
	again := proto.CloneOf(all[6])
	again.Reason = "silent again"
	back := node("node-7.example.com", leasev1.NodeHealth_HEALTH_READY)
	return []commandtest.Watch{
		{
			Nodes: append(added(all[6], all[0], all[1]), bookmark(), modified(beat), modified(back), bookmark(missing()...), bookmark()),
			Err:   rpcerror.ShuttingDown(),
		},
		{Nodes: append(added(beat, node("node-9", leasev1.NodeHealth_HEALTH_STARTING), back), bookmark(), deleted("node-9"), deleted("node-8"), modified(again))},
	}
}

func TestNodesWatch_LinePerChangeThroughRestart(t *testing.T) {
	tests := []struct {
		name  string
		args  []string
		until []string
	}{
		{name: "watch", until: []string{"silent again", "disruption"}},
		{name: "watch-unknown", args: []string{"--health=unknown", "--no-headers"}, until: []string{"silent again", "disruption"}},
		{name: "watch-one", args: []string{"node-9"}, until: []string{"deleted", "disruption"}},
		{name: "watch-names", args: []string{"-o", "name"}, until: []string{"nodes/node-2\nnodes/node-9\nnodes/node-7"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Watches: restartWatches(), Zones: disruptedZones()})
			args := append([]string{"--server", server, "-w"}, test.args...)
			got := commandtest.Run(t, commandtest.Terminal{Until: test.until}, nodes.NewCommand, args...)
			if got.Code != exit.Interrupted {
				t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
			}
			commandtest.Golden(t, test.name+".txt", got.Stdout)
		})
	}
}

func TestNodesWatch_ReportsMissingParts(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Watches: restartWatches(), Zones: normalZones()})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"stream lost"}}, nodes.NewCommand, "--server", server, "-w")
	want := "3 nodes: 2 ready, 1 unknown\n" +
		"missing: leasesvc node-2-slow1: DEADLINE_EXCEEDED: no answer within 1s\n" +
		"complete: all replicas answer\n" +
		"stream lost: this replica is shutting down; try another one; reconnecting\n"
	if got.Stderr != want {
		t.Errorf("stderr =\n%s, want\n%s", got.Stderr, want)
	}
}

func TestNodesWatch_LostStreamIsReportedOnce(t *testing.T) {
	down := commandtest.Watch{Err: errors.New("down")}
	back := commandtest.Watch{Nodes: append(added(readyNodes()...), bookmark(), modified(everyHealth()[6]))}
	for _, form := range []string{"table", "json"} {
		server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), Watches: []commandtest.Watch{
			{Nodes: append(added(readyNodes()...), bookmark()), Err: errors.New("down")}, down, down, back,
		}})
		got := commandtest.Run(t, commandtest.Terminal{Until: []string{"node-7.example.com"}}, nodes.NewCommand, "--server", server, "-w", "-o", form)
		if times := strings.Count(got.Stderr, "stream lost"); times != 1 {
			t.Errorf("%s: reported %d times:\n%s", form, times, got.Stderr)
		}
	}
}

func TestNodesWatch_KeepsItemsWhileAPartIsMissing(t *testing.T) {
	all := readyNodes()
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), Watches: []commandtest.Watch{
		{Nodes: append(added(all...), bookmark()), Err: errors.New("gone")},
		{Nodes: append(added(all[0]), bookmark(missing()...), modified(everyHealth()[6]), bookmark(), modified(everyHealth()[5]))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"nodes/node-6"}}, nodes.NewCommand, "--server", server, "-w", "-o", "name")
	if want := "nodes/node-1\nnodes/node-2\nnodes/node-7.example.com\nnodes/node-2\nnodes/node-6\n"; got.Stdout != want {
		t.Errorf("stdout = %q, want %q: node-2 is deleted only when no part is missing", got.Stdout, want)
	}
}

func TestNodesWatch_JSONLinePerEvent(t *testing.T) {
	ready := &leasev1.NodeHealth{Name: "nodes/a", Health: leasev1.NodeHealth_HEALTH_READY}
	silent := &leasev1.NodeHealth{Name: "nodes/a", Health: leasev1.NodeHealth_HEALTH_SILENT}
	other := &leasev1.NodeHealth{Name: "nodes/b", Health: leasev1.NodeHealth_HEALTH_SILENT}
	server := commandtest.Serve(t, &commandtest.Gateway{Watches: []commandtest.Watch{{
		Nodes: append(added(ready, other), bookmark(), modified(silent), modified(silent), deleted("b"), modified(ready), deleted("a")),
	}}})
	got := commandtest.Run(t, commandtest.Terminal{Width: 80, Height: 24, Until: []string{"TYPE_DELETED"}}, nodes.NewCommand,
		"--server", server, "-w", "-o", "json", "--health=ready")

	var shown []string
	for line := range strings.Lines(got.Stdout) {
		shown = append(shown, strings.Join(regexp.MustCompile(`(TYPE|HEALTH)_[A-Z]+|nodes/[a-z]`).FindAllString(line, 3), " "))
	}
	want := []string{
		"TYPE_ADDED nodes/a HEALTH_READY", "TYPE_BOOKMARK", "TYPE_MODIFIED nodes/a HEALTH_SILENT", // no longer selected
		"TYPE_MODIFIED nodes/a HEALTH_READY", "TYPE_DELETED nodes/a HEALTH_UNSPECIFIED",
	}
	if strings.Join(shown, "\n") != strings.Join(want, "\n") {
		t.Errorf("events\n%s, want\n%s", strings.Join(shown, "\n"), strings.Join(want, "\n"))
	}
}

// lastFrame returns the last text on the screen, without escape sequences.
func lastFrame(stdout string) string {
	frames := strings.Split(stdout, "\x1b[H")
	return regexp.MustCompile("\x1b\\[[0-9]*[A-Za-z]").ReplaceAllString(frames[len(frames)-1], "")
}

func TestNodesWatch_InPlaceOnATerminal(t *testing.T) {
	tests := []struct {
		name  string
		where commandtest.Terminal
	}{
		{name: "frame", where: commandtest.Terminal{Width: 160, Height: 24, Until: []string{"partial disruption"}}},
		{name: "frame-narrow", where: commandtest.Terminal{Width: 60, Height: 24, Until: []string{"partial disruption"}}},
		{name: "frame-low", where: commandtest.Terminal{Width: 160, Height: 11, Until: []string{"partial disruption"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Zones: disruptedZones(), Watches: []commandtest.Watch{{Nodes: append(added(everyHealth()...), bookmark(missing()...))}}})
			got := commandtest.Run(t, test.where, nodes.NewCommand, "--server", server, "-w")
			if got.Code != exit.Interrupted || got.Stderr != "" {
				t.Errorf("exit code = %d, stderr %q; want %d and nothing", got.Code, got.Stderr, exit.Interrupted)
			}
			commandtest.Golden(t, test.name+".txt", lastFrame(got.Stdout))
		})
	}
}

func TestNodesWatch_ScreenShowsALostStream(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), Watches: []commandtest.Watch{
		{Nodes: append(added(readyNodes()...), bookmark()), Err: rpcerror.ShuttingDown()},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Width: 160, Height: 24, Until: []string{"stream lost"}}, nodes.NewCommand, "--server", server, "-w")
	if frame := lastFrame(got.Stdout); !strings.HasPrefix(frame, "2 nodes: 2 ready\nstream lost: this replica is shutting down; try another one; reconnecting\n\nNAME") {
		t.Errorf("the last frame is\n%s", frame)
	}
}

func TestNodesWatch_HangingGatewayTimesOut(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), Watches: []commandtest.Watch{{Nodes: added(readyNodes()...)}}})
	got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--server", server, "-w", "--timeout=300ms")
	if got.Code != exit.Undetermined || !strings.Contains(got.Stderr, "no message from the gateway for 300ms") {
		t.Errorf("%+v, want exit code %d and the cause", got, exit.Undetermined)
	}
}

func TestNodesWatch_ScreenFollowsChanges(t *testing.T) {
	dead := everyHealth()[6]
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), Watches: []commandtest.Watch{
		{Nodes: append(added(append(readyNodes(), dead)...), bookmark(), deleted("node-2"), modified(node("node-7.example.com", leasev1.NodeHealth_HEALTH_SUSPECT)))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Width: 160, Height: 24, Until: []string{"suspect"}}, nodes.NewCommand, "--server", server, "-w", "--no-headers")
	frame := lastFrame(got.Stdout)
	if !strings.HasPrefix(frame, "2 nodes: 1 ready, 1 suspect\n\nnode-1              ready    True  eu:a  live") {
		t.Errorf("the last frame is\n%s", frame)
	}
}

func TestNodesWatch_JSONRepeatsAllItemsAfterARestart(t *testing.T) {
	one := node("node-1", leasev1.NodeHealth_HEALTH_READY)
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), Watches: []commandtest.Watch{
		{Nodes: append(added(one), bookmark()), Err: rpcerror.ShuttingDown()},
		{Nodes: append(added(one), bookmark(), deleted("node-1"))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"TYPE_DELETED"}}, nodes.NewCommand, "--server", server, "-w", "-o", "json")
	events := regexp.MustCompile("TYPE_[A-Z]+").FindAllString(got.Stdout, -1)
	if want := "TYPE_ADDED TYPE_BOOKMARK TYPE_ADDED TYPE_BOOKMARK TYPE_DELETED"; strings.Join(events, " ") != want {
		t.Errorf("events %v, want %s", events, want)
	}
	if want := "stream lost: this replica is shutting down; try another one; reconnecting\n"; got.Stderr != want {
		t.Errorf("stderr = %q, want %q", got.Stderr, want)
	}
}
