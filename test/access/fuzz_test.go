package access

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/quota"
	registryv1 "github.com/trivet-dev/trivet/proto/trivet/registry/v1alpha1"
)

var only = flag.String("access.only", "", "the RPC, or the HTTP route, that a fuzz target calls; empty: each of them")

// programs are the servers of a world.
var programs = []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"}

// coordinates says whether this process only starts the processes that fuzz. It gives the seeds and
// needs no servers.
func coordinates() bool {
	fuzzes, works := flag.Lookup("test.fuzz"), flag.Lookup("test.fuzzworker")
	return fuzzes.Value.String() != "" && works.Value.String() != "true"
}

// newFuzzedWorld starts the servers with limits that a fuzz target does not reach. The limits of
// sizes are those of a server.
func newFuzzedWorld(f *testing.F) *world {
	f.Helper()
	w := newEmptyWorld(f)
	w.limits = quota.Methods()
	for method, limit := range w.limits {
		if !limit.CountedByHandler {
			limit.Rate, limit.Burst, limit.InFlight = 1e6, 1_000_000, 10_000
			w.limits[method] = limit
		}
	}
	w.startAll(f)
	return w
}

// key places a target on a ring, so that an input of the corpus keeps its target when others come.
func key(name string) uint32 {
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, name)
	return sum.Sum32()
}

// ring has the targets by their keys.
type ring[T any] struct {
	keys    []uint32
	targets []T
}

// newRing has all targets, or only the one with the name of the flag.
func newRing[T any](f *testing.F, targets []T, name func(T) string) *ring[T] {
	f.Helper()
	if *only != "" {
		targets = slices.DeleteFunc(slices.Clone(targets), func(one T) bool { return name(one) != *only })
	}
	if len(targets) == 0 {
		f.Fatalf("there is no target %q", *only)
	}
	slices.SortFunc(targets, func(a, b T) int { return cmp.Compare(key(name(a)), key(name(b))) })
	found := &ring[T]{targets: targets}
	for _, one := range targets {
		found.keys = append(found.keys, key(name(one)))
	}
	return found
}

// at returns the first target at or after a key.
func (r *ring[T]) at(key uint32) T {
	i, _ := slices.BinarySearch(r.keys, key)
	return r.targets[i%len(r.targets)]
}

// registeredReasons has the code of each reason of an error.
var registeredReasons = sync.OnceValue(func() map[string]codes.Code {
	found := map[string]codes.Code{}
	values := registryv1.ErrorReason(0).Descriptor().Values()
	for i := range values.Len() {
		info, _ := proto.GetExtension(values.Get(i).Options(), registryv1.E_Reason).(*registryv1.ReasonInfo)
		if info != nil {
			found[cmp.Or(info.GetName(), strings.TrimPrefix(string(values.Get(i).Name()), "ERROR_REASON_"))] = codes.Code(info.GetCode())
		}
	}
	return found
})

// checkText fails if a text would control a terminal or change the direction of a line.
func checkText(t *testing.T, what, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
	}); i >= 0 {
		t.Errorf("%s has the character %q: %.300q", what, text[i:min(i+4, len(text))], text)
	}
}

// outcomes counts how calls ended. A test prints them with -v.
type outcomes struct {
	mu     sync.Mutex // guards counts
	counts map[string]int
}

func (o *outcomes) add(outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts == nil {
		o.counts = map[string]int{}
	}
	o.counts[outcome]++
}

func (o *outcomes) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines []string
	for outcome, count := range o.counts {
		lines = append(lines, fmt.Sprintf("%6d %s", count, outcome))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// checkPanics fails if a server has recovered from a panic.
func (w *world) checkPanics(f *testing.F) {
	f.Helper()
	client := w.httpClient(f, certificate("admin", everything, "admin", "system:masters"))
	for name, address := range w.http {
		if name == "page" {
			continue
		}
		reply, err := client.Get("https://" + address() + "/metrics")
		if err != nil {
			f.Fatal(err)
		}
		text, err := io.ReadAll(reply.Body)
		_ = reply.Body.Close()
		if err != nil || reply.StatusCode != http.StatusOK {
			f.Fatalf("metrics of %s: %s, %v", name, reply.Status, err)
		}
		if !strings.Contains(string(text), "\ntrivet_rpc_panics_total 0\n") {
			f.Errorf("%s has recovered from a panic; its log has the stack", name)
		}
	}
}
