package hostile

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// input is one bad request.
type input struct {
	name string
	// call returns the error of the server, with want as its code.
	call func(context.Context) error
	want []codes.Code
	// field is in the text or the details of the error; empty for any.
	field string
}

// TestInput_EachRefusalIsCanonicalAndFast sends each bad request of one row of the table many
// times, through the gateway and to leasesvc. The servers answer all of them and a good request
// after.
func TestInput_EachRefusalIsCanonicalAndFast(t *testing.T) {
	w := newWorld(t)
	for _, row := range []struct {
		name   string
		inputs []input
	}{
		{"metadata", metadataInputs(w)}, {"names", nameInputs(w)}, {"times", timeInputs(w)}, {"sequences", sequenceInputs(w)}, {"pages", pageInputs(w)},
		{"JSON", bodyInputs(w)},
	} {
		t.Run(row.name, func(t *testing.T) {
			var took []time.Duration
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, in := range row.inputs {
				for range 5 {
					began := time.Now()
					err := in.call(t.Context())
					took = append(took, time.Since(began))
					if !slices.Contains(in.want, status.Code(err)) || !strings.Contains(textOf(err), in.field) {
						t.Errorf("%s: %v, want %v about %q", in.name, err, in.want, in.field)
						break
					}
				}
			}
			runtime.ReadMemStats(&after)
			slices.Sort(took)
			t.Logf("%d cases, %d calls, p99 of a refusal %d µs, %d allocations each, in client, gateway and server", len(row.inputs), len(took),
				took[len(took)*99/100].Microseconds(), (after.Mallocs-before.Mallocs)/uint64(len(took)))
			if _, err := nodev1.NewNodeHealthServiceClient(w.gateway).ListNodeHealth(t.Context(), &nodev1.ListNodeHealthRequest{}); err != nil {
				t.Errorf("a good request after the bad ones: %v", err)
			}
		})
	}
}

// textOf returns an error with its details.
func textOf(err error) string { return fmt.Sprint(err, status.Convert(err).Details()) }

func metadataInputs(w *world) []input {
	many := metadata.MD{}
	for i := range 10_000 {
		many.Append(fmt.Sprintf("k%d", i), "v")
	}
	list := func(with metadata.MD, size int) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := nodev1.NewNodeHealthServiceClient(w.gateway).ListNodeHealth(metadata.NewOutgoingContext(ctx, with), &nodev1.ListNodeHealthRequest{PageToken: strings.Repeat("x", size)})
			return err
		}
	}
	return []input{
		{"10,000 keys", list(many, 0), []codes.Code{codes.Internal, codes.ResourceExhausted, codes.Unavailable}, ""},
		{"a message of 8 MiB", list(nil, 8<<20), []codes.Code{codes.ResourceExhausted, codes.InvalidArgument}, ""},
	}
}

// oddNames are no names of Nodes.
func oddNames() []string {
	return []string{"", strings.Repeat("n", 254), "../x", "a/b", "a\x00b", "Node", "a b", "\u202enode", "\x1b[31mnode", "a..b", "-a", "%2e%2e"}
}

func nameInputs(w *world) []input {
	var all []input
	for _, name := range oddNames() {
		all = append(all,
			input{fmt.Sprintf("GetNodeHealth %.20q", name), func(ctx context.Context) error {
				_, err := nodev1.NewNodeHealthServiceClient(w.gateway).GetNodeHealth(ctx, &nodev1.GetNodeHealthRequest{Name: "nodes/" + name})
				return err
			}, []codes.Code{codes.InvalidArgument, codes.NotFound}, "name"},
			input{fmt.Sprintf("GetServiceSlices %.20q", name), func(ctx context.Context) error {
				_, err := slicev1.NewSliceServiceClient(w.gateway).GetServiceSlices(ctx, &slicev1.GetServiceSlicesRequest{Name: "namespaces/" + name + "/serviceslices/web"})
				return err
			}, []codes.Code{codes.InvalidArgument, codes.NotFound}, "name"},
			input{fmt.Sprintf("Heartbeat %.20q", name), beat(w, &leasev1.Beat{Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "b"}, Sequence: 1}),
				[]codes.Code{codes.InvalidArgument}, "beats[0].holder.name"},
		)
	}
	return all
}

// beat sends one beat to leasesvc.
func beat(w *world, one *leasev1.Beat) func(context.Context) error {
	return func(ctx context.Context) error {
		response, err := leasev1.NewHeartbeatServiceClient(w.dial("leasesvc")).Heartbeat(ctx, &leasev1.HeartbeatRequest{Beats: []*leasev1.Beat{one}})
		if rejection := response.GetResults(); err == nil && len(rejection) == 1 && rejection[0].GetRejection() != nil {
			return status.Error(codes.Aborted, rejection[0].String())
		}
		return err
	}
}

func timeInputs(w *world) []input {
	var all []input
	for _, seconds := range []int64{math.MinInt64, -62135596801, 253402300800, math.MaxInt64} {
		all = append(all, input{fmt.Sprint("ListDecisions from ", seconds), func(ctx context.Context) error {
			_, err := statusv1.NewDecisionServiceClient(w.gateway).ListDecisions(ctx, &statusv1.ListDecisionsRequest{StartTime: &timestamppb.Timestamp{Seconds: seconds}})
			return err
		}, []codes.Code{codes.InvalidArgument}, "start_time"})
	}
	for _, age := range []*durationpb.Duration{{Seconds: -1}, {Nanos: -1}, {Seconds: math.MinInt64}} {
		all = append(all, input{fmt.Sprint("Heartbeat of age ", age), beat(w, &leasev1.Beat{
			Holder: &leasev1.Holder{Class: "node", Name: w.node, BootId: "b"}, Sequence: 1, Report: &leasev1.Report{ObservedAge: age},
		}), []codes.Code{codes.InvalidArgument}, "age"}, input{fmt.Sprint("Heartbeat of a kubelet that is cut off for ", age), beat(w, &leasev1.Beat{
			Holder: &leasev1.Holder{Class: "node", Name: w.node, BootId: "b"}, Sequence: 1, Report: &leasev1.Report{CutOffAge: age},
		}), []codes.Code{codes.InvalidArgument}, "cut_off_age"})
	}
	return all
}

// sequenceInputs are beats of a boot that another one has followed.
func sequenceInputs(w *world) []input {
	one := func(boot string, sequence uint64) *leasev1.Beat {
		return &leasev1.Beat{Holder: &leasev1.Holder{Class: "node", Name: w.tenant + "-replayed", BootId: boot}, Sequence: sequence}
	}
	for i, boot := range []string{"boot-1", "boot-2"} {
		register := beat(w, one(boot, uint64(10+i)))
		testkit.Eventually(w, timeout, func() error { return register(w.Context()) }) // a shard may have no leader yet
	}
	return []input{
		{"an earlier boot", beat(w, one("boot-1", 11)), []codes.Code{codes.Aborted}, "SUPERSEDED"},
		{"an earlier boot with the last sequence", beat(w, one("boot-1", math.MaxUint64)), []codes.Code{codes.Aborted}, "SUPERSEDED"},
	}
}

func pageInputs(w *world) []input {
	list := func(request *nodev1.ListNodeHealthRequest) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := nodev1.NewNodeHealthServiceClient(w.gateway).ListNodeHealth(ctx, request)
			return err
		}
	}
	return []input{
		{"forged token", list(&nodev1.ListNodeHealthRequest{PageToken: "Zm9yZ2Vk"}), []codes.Code{codes.InvalidArgument}, "page_token"},
		{"token of another list", list(&nodev1.ListNodeHealthRequest{PageToken: "\x00"}), []codes.Code{codes.InvalidArgument}, "page_token"},
		{"size -1", list(&nodev1.ListNodeHealthRequest{PageSize: -1}), []codes.Code{codes.InvalidArgument}, "page_size"},
		{"size 1,000,000,000", list(&nodev1.ListNodeHealthRequest{PageSize: 1e9}), []codes.Code{codes.InvalidArgument, codes.OK}, ""},
	}
}

func bodyInputs(w *world) []input {
	post := func(body string) func(context.Context) error {
		return func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.httpAddress+"/v1/namespaces/"+w.neighbour+"/serviceslices/web:plan", strings.NewReader(body))
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/json")
			reply, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer reply.Body.Close()
			text, err := io.ReadAll(reply.Body)
			if err == nil && reply.StatusCode == http.StatusBadRequest {
				return status.Error(codes.InvalidArgument, string(text))
			}
			return fmt.Errorf("%s: %s, %w", reply.Status, text, err)
		}
	}
	refused := []codes.Code{codes.InvalidArgument}
	return []input{
		{"a key twice", post(`{"name":"a","name":"b"}`), refused, "name"},
		{"a huge integer", post(`{"name":1` + strings.Repeat("0", 10_000) + `}`), refused, ""},
		{"depth 7,000, the most that a body holds", post(strings.Repeat(`{"name":`, 7_000) + strings.Repeat("}", 7_000)), refused, ""},
		{"depth 10,000 in an unknown field", post(`{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`), refused, ""},
		{"an unknown field", post(`{"nonsense":1}`), refused, "nonsense"},
		{"no object", post(`[]`), refused, ""},
		{"no JSON", post("\x00\xff"), refused, ""},
	}
}

// dial returns the connection to a service, which ends with the test.
func (w *world) dial(service string) *grpc.ClientConn {
	w.Helper()
	if w.conns[service] == nil {
		conn, err := grpc.NewClient(w.grpc[service], grpc.WithTransportCredentials(insecure.NewCredentials()))
		w.must(err)
		w.whole.Cleanup(func() { _ = conn.Close() })
		w.conns[service] = conn
	}
	return w.conns[service]
}

// A request with a field mask would need a check of its paths. There is none.
func TestInput_NoRequestHasAFieldMask(t *testing.T) {
	requests := 0
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Messages().Len() {
			message := file.Messages().Get(i)
			if !strings.HasPrefix(string(message.FullName()), "trivet.") || !strings.HasSuffix(string(message.Name()), "Request") {
				continue
			}
			requests++
			for j := range message.Fields().Len() {
				if of := message.Fields().Get(j).Message(); of != nil && of.FullName() == "google.protobuf.FieldMask" {
					t.Errorf("%s has a field mask: refuse unknown paths, and test it here", message.FullName())
				}
			}
		}
		return true
	})
	if requests == 0 {
		t.Error("there is no request")
	}
}
