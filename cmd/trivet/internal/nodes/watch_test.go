package nodes_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

type (
	watch  = commandtest.Watch[nodev1.WatchNodeHealthResponse]
	events = []*nodev1.WatchNodeHealthResponse
)

func added(nodes ...*nodev1.NodeHealth) events {
	var all events
	for _, n := range nodes {
		all = append(all, &nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, Node: n})
	}
	return all
}

func modified(n *nodev1.NodeHealth) *nodev1.WatchNodeHealthResponse {
	return &nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_MODIFIED, Node: n}
}

func deleted(name string) *nodev1.WatchNodeHealthResponse {
	return &nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_DELETED, Node: &nodev1.NodeHealth{Name: "nodes/" + name}}
}

// bookmark returns the bookmark after the initial events.
func bookmark(missing ...*metav1.MissingPart) *nodev1.WatchNodeHealthResponse {
	return &nodev1.WatchNodeHealthResponse{
		Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true, Missing: missing},
	}
}

// later returns a bookmark that follows the first one.
func later(missing ...*metav1.MissingPart) *nodev1.WatchNodeHealthResponse {
	return &nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{Missing: missing}}
}

func withToken(token string, event *nodev1.WatchNodeHealthResponse) *nodev1.WatchNodeHealthResponse {
	event.ResumeToken = token
	return event
}

// restartWatches returns a watch with changes, and one after a restart: node-2 was deleted and
// node-9 added meanwhile.
func restartWatches() []watch {
	all := everyHealth()
	beat := proto.CloneOf(all[0])
	beat.Signals[0].SeenTime, beat.ResourceVersion, beat.Owner.Epoch = commandtest.Ago(0), "813", 18300
	again := proto.CloneOf(all[6])
	again.Message = "silent again"
	back := node("node-7.example.com", nodev1.NodeHealth_HEALTH_READY)
	return []watch{
		{
			Events: append(added(all[6], all[0], all[1]), bookmark(), modified(beat), modified(back), later(missing()...), later()),
			Err:    rpcerror.ShuttingDown(),
		},
		{Events: append(added(beat, node("node-9", nodev1.NodeHealth_HEALTH_STARTING), back), bookmark(), deleted("node-9"), deleted("node-8"), modified(again))},
	}
}

func TestNodesWatch_LinePerChangeThroughRestart(t *testing.T) {
	tests := []struct {
		name  string
		args  []string
		until []string
	}{
		{name: "watch", until: []string{"silent again", "disruption"}},
		{name: "watch-one", args: []string{"node-9"}, until: []string{"deleted", "disruption"}},
		{name: "watch-names", args: []string{"-o", "name"}, until: []string{"nodes/node-2\nnodes/node-9\nnodes/node-7"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{NodeWatches: restartWatches(), Zones: disruptedZones()})
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
	server := commandtest.Serve(t, &commandtest.Gateway{NodeWatches: restartWatches(), Zones: normalZones()})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"stream lost"}}, nodes.NewCommand, "--server", server, "-w")
	want := "3 nodes: 2 ready, 1 unknown\n" +
		"missing: leasesvc shards 3, 7: no leader\n" +
		"complete: no part is missing\n" +
		"stream lost: this replica is shutting down; try another one; reconnecting\n"
	if got.Stderr != want {
		t.Errorf("stderr =\n%s, want\n%s", got.Stderr, want)
	}
}

func TestNodesWatch_LostStreamIsReportedOnce(t *testing.T) {
	down := watch{Err: errors.New("down")}
	back := watch{Events: append(added(readyNodes()...), bookmark(), modified(everyHealth()[6]))}
	for _, form := range []string{"table", "json"} {
		server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
			{Events: append(added(readyNodes()...), bookmark()), Err: errors.New("down")}, down, down, back,
		}})
		got := commandtest.Run(t, commandtest.Terminal{Until: []string{"node-7.example.com"}}, nodes.NewCommand, "--server", server, "-w", "-o", form)
		if times := strings.Count(got.Stderr, "stream lost"); times != 1 {
			t.Errorf("%s: reported %d times:\n%s", form, times, got.Stderr)
		}
	}
}

func TestNodesWatch_KeepsItemsWhileAPartIsMissing(t *testing.T) {
	all := readyNodes()
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
		{Events: append(added(all...), bookmark()), Err: errors.New("gone")},
		{Events: append(added(all[0]), bookmark(missing()...), modified(everyHealth()[6]), later(), modified(everyHealth()[5]))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"nodes/node-6"}}, nodes.NewCommand, "--server", server, "-w", "-o", "name")
	if want := "nodes/node-1\nnodes/node-2\nnodes/node-7.example.com\nnodes/node-2\nnodes/node-6\n"; got.Stdout != want {
		t.Errorf("stdout = %q, want %q: node-2 is deleted only when no part is missing", got.Stdout, want)
	}
}

// The gateway filters a watch. A Node that it does not select any more is deleted from the watch,
// in its new state; a Node that does not exist any more, in its last one.
func TestNodesWatch_ShowsWhatLeavesTheFilter(t *testing.T) {
	unknown := func(name string) *nodev1.NodeHealth {
		return node(name, nodev1.NodeHealth_HEALTH_UNKNOWN, markedUnknown)
	}
	gateway := &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{{Events: append(added(unknown("a"), unknown("b"), unknown("c")), bookmark(),
		&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_DELETED, Node: node("a", nodev1.NodeHealth_HEALTH_READY)},
		&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_DELETED, Node: unknown("b")},
		deleted("c"))}}}
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"c     deleted"}}, nodes.NewCommand,
		"--server", commandtest.Serve(t, gateway), "-w", "--health=unknown,silent", "--zone=eu:a")
	commandtest.Golden(t, "watch-filter.txt", got.Stdout)
	want := []*nodev1.WatchNodeHealthRequest{{
		Healths: []nodev1.NodeHealth_Health{nodev1.NodeHealth_HEALTH_UNKNOWN, nodev1.NodeHealth_HEALTH_SILENT}, Zones: []string{"zones/eu:a"},
	}}
	if diff := cmp.Diff(want, commandtest.RequestsOf[*nodev1.WatchNodeHealthRequest](gateway), protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestNodesWatch_JSONLinePerEvent(t *testing.T) {
	ready := &nodev1.NodeHealth{Name: "nodes/a", Health: nodev1.NodeHealth_HEALTH_READY}
	silent := &nodev1.NodeHealth{Name: "nodes/a", Health: nodev1.NodeHealth_HEALTH_SILENT}
	other := &nodev1.NodeHealth{Name: "nodes/b", Health: nodev1.NodeHealth_HEALTH_SILENT}
	server := commandtest.Serve(t, &commandtest.Gateway{NodeWatches: []watch{
		{Events: append(added(ready, other), bookmark(), modified(silent), deleted("b"), deleted("a"))},
		{Events: append(added(ready), bookmark(), deleted("a"))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Width: 80, Height: 24, Until: []string{"TYPE_DELETED"}}, nodes.NewCommand,
		"--server", server, "-w", "-o", "json", "a")
	var shown []string
	for line := range strings.Lines(got.Stdout) {
		shown = append(shown, strings.Join(regexp.MustCompile(`(TYPE|HEALTH)_[A-Z]+|nodes/[a-z]`).FindAllString(line, 3), " "))
	}
	want := []string{"TYPE_ADDED nodes/a HEALTH_READY", "TYPE_BOOKMARK", "TYPE_MODIFIED nodes/a HEALTH_SILENT", "TYPE_DELETED nodes/a HEALTH_UNSPECIFIED"}
	if strings.Join(shown, "\n") != strings.Join(want, "\n") {
		t.Errorf("events\n%s, want\n%s", strings.Join(shown, "\n"), strings.Join(want, "\n"))
	}
	got = commandtest.Run(t, commandtest.Terminal{Until: []string{"TYPE_DELETED"}}, nodes.NewCommand, "--server", server, "-w", "-o", "yaml")
	if documents := strings.Count(got.Stdout, "---\n"); documents != 3 {
		t.Errorf("YAML has %d documents, want 3:\n%s", documents, got.Stdout)
	}
}

// A broken watch resumes after the last event that has a token, and shows nothing twice.
func TestNodesWatch_ResumesWithItsLastToken(t *testing.T) {
	all := everyHealth()
	gateway := &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
		{Events: append(added(all[0], all[1]), withToken("t1", bookmark()), withToken("t2", modified(all[2])), modified(all[3])), Err: errors.New("gone")},
		{Events: events{modified(all[4]), withToken("t3", bookmark())}, Err: errors.New("gone")},
		{Events: events{deleted("node-2"), modified(all[5])}},
	}}
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"nodes/node-6"}}, nodes.NewCommand, "--server", commandtest.Serve(t, gateway), "-w", "-o", "name")
	if want := "nodes/node-1\nnodes/node-2\nnodes/node-3\nnodes/node-4\nnodes/node-5\nnodes/node-2\nnodes/node-6\n"; got.Stdout != want {
		t.Errorf("stdout = %q, want %q", got.Stdout, want)
	}
	if want, tokens := "|t2|t3", watchTokens(gateway); tokens != want {
		t.Errorf("tokens %q, want %q", tokens, want)
	}
}

// A token that the gateway does not know any more begins the watch anew: what is gone meanwhile is
// shown as deleted.
func TestNodesWatch_ExpiredTokenBeginsAnew(t *testing.T) {
	all := readyNodes()
	expired := rpcerror.New(codes.OutOfRange, "RESUME_TOKEN_EXPIRED", "the token is of another server")
	for _, form := range []string{"name", "json"} {
		gateway := &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
			{Events: append(added(all...), withToken("t1", bookmark())), Err: errors.New("gone")},
			{Err: expired},
			{Events: append(added(all[0]), bookmark(), modified(everyHealth()[5]))},
		}}
		got := commandtest.Run(t, commandtest.Terminal{Until: []string{"nodes/node-6"}}, nodes.NewCommand, "--server", commandtest.Serve(t, gateway), "-w", "-o", form)
		if want, tokens := "|t1|", watchTokens(gateway); tokens != want {
			t.Errorf("%s: tokens %q, want %q", form, tokens, want)
		}
		if want := "nodes/node-1\nnodes/node-2\nnodes/node-2\nnodes/node-6\n"; form == "name" && got.Stdout != want {
			t.Errorf("stdout = %q, want %q", got.Stdout, want)
		}
		if again := strings.Contains(got.Stderr, "all items come again"); again != (form == "json") || strings.Contains(got.Stderr, "token") {
			t.Errorf("%s: stderr = %q", form, got.Stderr)
		}
	}
}

func watchTokens(gateway *commandtest.Gateway) string {
	var tokens []string
	for _, request := range commandtest.RequestsOf[*nodev1.WatchNodeHealthRequest](gateway) {
		tokens = append(tokens, request.GetResumeToken())
	}
	return strings.Join(tokens, "|")
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
			server := commandtest.Serve(t, &commandtest.Gateway{Zones: disruptedZones(), NodeWatches: []watch{{Events: append(added(everyHealth()...), bookmark(missing()...))}}})
			got := commandtest.Run(t, test.where, nodes.NewCommand, "--server", server, "-w")
			if got.Code != exit.Interrupted || got.Stderr != "" {
				t.Errorf("exit code = %d, stderr %q; want %d and nothing", got.Code, got.Stderr, exit.Interrupted)
			}
			commandtest.Golden(t, test.name+".txt", lastFrame(got.Stdout))
		})
	}
}

func TestNodesWatch_ScreenShowsALostStream(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
		{Events: append(added(readyNodes()...), bookmark()), Err: rpcerror.ShuttingDown()},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Width: 160, Height: 24, Until: []string{"stream lost"}}, nodes.NewCommand, "--server", server, "-w")
	if frame := lastFrame(got.Stdout); !strings.HasPrefix(frame, "2 nodes: 2 ready\nstream lost: this replica is shutting down; try another one; reconnecting\n\nNAME") {
		t.Errorf("the last frame is\n%s", frame)
	}
}

func TestNodesWatch_HangingGatewayTimesOut(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{{Events: added(readyNodes()...)}}})
	got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--server", server, "-w", "--timeout=300ms")
	if got.Code != exit.Undetermined || !strings.Contains(got.Stderr, "no message from the gateway for 300ms") {
		t.Errorf("%+v, want exit code %d and the cause", got, exit.Undetermined)
	}
}

func TestNodesWatch_ScreenFollowsChanges(t *testing.T) {
	dead := everyHealth()[6]
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
		{Events: append(added(append(readyNodes(), dead)...), bookmark(), deleted("node-2"), modified(node("node-7.example.com", nodev1.NodeHealth_HEALTH_SUSPECT)))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Width: 160, Height: 24, Until: []string{"suspect"}}, nodes.NewCommand, "--server", server, "-w", "--no-headers")
	frame := lastFrame(got.Stdout)
	if !strings.HasPrefix(frame, "2 nodes: 1 ready, 1 suspect\n\nnode-1              ready    True  eu:a  live") {
		t.Errorf("the last frame is\n%s", frame)
	}
}

func TestNodesWatch_JSONRepeatsAllItemsAfterARestart(t *testing.T) {
	one := node("node-1", nodev1.NodeHealth_HEALTH_READY)
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: normalZones(), NodeWatches: []watch{
		{Events: append(added(one), bookmark()), Err: rpcerror.ShuttingDown()},
		{Events: append(added(one), bookmark(), deleted("node-1"))},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"TYPE_DELETED"}}, nodes.NewCommand, "--server", server, "-w", "-o", "json")
	events := regexp.MustCompile("TYPE_[A-Z]+").FindAllString(got.Stdout, -1)
	if want := "TYPE_ADDED TYPE_BOOKMARK TYPE_ADDED TYPE_BOOKMARK TYPE_DELETED"; strings.Join(events, " ") != want {
		t.Errorf("events %v, want %s", events, want)
	}
	if want := "stream lost: this replica is shutting down; try another one; reconnecting\nthe watch cannot be resumed; all items come again\n"; got.Stderr != want {
		t.Errorf("stderr = %q, want %q", got.Stderr, want)
	}
}
