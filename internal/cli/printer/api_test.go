package printer_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestMissing(t *testing.T) {
	got := printer.Missing([]*metav1.MissingPart{
		{Service: "slicesvc", ReplicaId: "node-2-slow1", Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s"},
		{Service: "leasesvc", Shards: []int32{3, 7}, Code: code.Code_UNAVAILABLE, Message: "no leader"},
		{Service: "bootstrapsvc", Shards: []int32{0}, ReplicaId: "b", Code: code.Code_PERMISSION_DENIED},
	})
	want := []string{
		"missing: bootstrapsvc replica b shard 0: PERMISSION_DENIED",
		"missing: leasesvc shards 3, 7: no leader",
		"missing: slicesvc replica node-2-slow1: no answer within 1s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Missing() (-want +got):\n%s", diff)
	}
}

func TestShards(t *testing.T) {
	for _, test := range []struct {
		shards []int32
		want   string
	}{
		{nil, ""}, {[]int32{5}, "5"}, {[]int32{0, 1}, "0, 1"}, {[]int32{0, 1, 2}, "0-2"}, {[]int32{0, 1, 3, 4, 5, 6, 9, 10}, "0, 1, 3-6, 9, 10"},
	} {
		if got := printer.Shards(test.shards); got != test.want {
			t.Errorf("Shards(%v) = %q, want %q", test.shards, got, test.want)
		}
	}
}

func TestConditionMessage(t *testing.T) {
	const yes, no = metav1.Condition_STATUS_TRUE, metav1.Condition_STATUS_FALSE
	conditions := []*metav1.Condition{{Type: "A", Status: yes, Reason: "R", Message: "m"}, {Type: "B", Status: no, Reason: "R"}, {Type: "C", Status: no}}
	for _, test := range []struct {
		conditionType string
		status        metav1.Condition_Status
		want          string
	}{
		{"A", yes, "m"}, {"A", no, ""}, {"B", no, "R"}, {"C", no, "C"}, {"D", no, ""},
	} {
		if got := printer.ConditionMessage(conditions, test.conditionType, test.status); got != test.want {
			t.Errorf("ConditionMessage(%s, %s) = %q, want %q", test.conditionType, test.status, got, test.want)
		}
	}
}

// Shard 0 is a shard; no shard is none.
func TestOwner(t *testing.T) {
	for _, test := range []struct {
		owner                 *metav1.Owner
		shard, epoch, replica string
	}{
		{nil, "-", "-", "-"}, {&metav1.Owner{ReplicaId: "a"}, "-", "-", "a"}, {&metav1.Owner{ReplicaId: "a", Shard: proto.Int32(0), Epoch: 7}, "0", "7", "a"},
	} {
		if shard, epoch, replica := printer.Owner(test.owner); shard != test.shard || epoch != test.epoch || replica != test.replica {
			t.Errorf("Owner(%v) = %s, %s, %s; want %s, %s, %s", test.owner, shard, epoch, replica, test.shard, test.epoch, test.replica)
		}
	}
}

func TestEnumWords(t *testing.T) {
	want := []string{"planned", "applied", "not-needed", "failed", "skipped"}
	if diff := cmp.Diff(want, printer.EnumWords[metav1.Change_Outcome]("OUTCOME_")); diff != "" {
		t.Errorf("EnumWords() (-want +got):\n%s", diff)
	}
	got := printer.EnumsOf[metav1.Change_Outcome]([]string{"not-needed", "other", "failed"}, "OUTCOME_", metav1.Change_Outcome_value)
	if diff := cmp.Diff([]metav1.Change_Outcome{metav1.Change_OUTCOME_NOT_NEEDED, metav1.Change_OUTCOME_FAILED}, got); diff != "" {
		t.Errorf("EnumsOf() (-want +got):\n%s", diff)
	}
}
