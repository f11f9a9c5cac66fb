package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// Lines of watches are what protojson makes of them, also if the item was encoded before or has
// changed since.
func TestMarshaler_LinesAreThoseOfProtojson(t *testing.T) {
	node := &nodev1.NodeHealth{
		Name: "nodes/a", Zone: `"node":null`, Message: "a\n\u2028", Taints: []string{"x"}, ChangeTime: timestamppb.Now(), Owner: &metav1.Owner{Epoch: 1 << 60},
	}
	changed := proto.CloneOf(node)
	changed.Owner.Epoch++
	m := newMarshaler()
	for _, message := range []proto.Message{
		&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_ADDED, Node: node, ResumeToken: "t1"},
		&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_MODIFIED, Node: node, ResumeToken: `"node":null`},
		&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_DELETED, Node: changed},
		&nodev1.WatchNodeHealthResponse{Node: &nodev1.NodeHealth{}},
		&nodev1.WatchNodeHealthResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}},
		&nodev1.WatchZonesResponse{Zone: &nodev1.Zone{Name: "zones/a", NodeCount: 3}},
		&gatewayv1.WatchClusterStatusResponse{Status: &gatewayv1.ClusterStatus{Cluster: "c"}},
	} {
		want, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Marshal(map[string]any{"result": proto.CloneOf(message)})
		if err != nil {
			t.Fatal(err)
		}
		var line map[string]any
		var wanted any
		if err := json.Unmarshal(got, &line); err != nil {
			t.Fatalf("%v in %s", err, got)
		}
		if err := json.Unmarshal(want, &wanted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"result": wanted}, line); diff != "" {
			t.Errorf("line (-want +got):\n%s", diff)
		}
	}
}

// One replica's time out of the range of JSON fails neither its item nor the answer around it.
func TestMarshaler_ATimeOutOfRangeFailsNoAnswer(t *testing.T) {
	odd := &timestamppb.Timestamp{Seconds: 1 << 40}
	m := newMarshaler()
	for name, value := range map[string]any{
		"answer": &nodev1.ListNodeHealthResponse{Nodes: []*nodev1.NodeHealth{{Name: "nodes/a", ChangeTime: odd}, {Name: "nodes/b"}}},
		"item":   map[string]any{"result": &nodev1.WatchNodeHealthResponse{Node: &nodev1.NodeHealth{Name: "nodes/b", ChangeTime: odd}}},
		"rest": map[string]any{"result": &nodev1.WatchNodeHealthResponse{
			Node: &nodev1.NodeHealth{Name: "nodes/b"}, Bookmark: &metav1.Bookmark{Sources: []*metav1.Source{{ReadTime: odd}}},
		}},
	} {
		text, err := m.Marshal(value)
		if err != nil || !json.Valid(text) || !strings.Contains(string(text), "nodes/b") || !strings.Contains(string(text), "9999-12-31T23:59:59") {
			t.Errorf("%s: %v, %s; want everything with the last valid time", name, err, text)
		}
	}
}
