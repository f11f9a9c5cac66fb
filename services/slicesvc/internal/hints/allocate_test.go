package hints_test

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// endpointsIn returns endpoints in these zones, without hints.
func endpointsIn(zones ...string) []hints.Endpoint {
	endpoints := make([]hints.Endpoint, len(zones))
	for i, zone := range zones {
		endpoints[i] = hints.Endpoint{Zone: zone, Slice: "s", Key: fmt.Sprintf("%03d", i)}
	}
	return endpoints
}

func repeated(zone string, n int) []string { return slices.Repeat([]string{zone}, n) }

// count returns how many endpoints each zone has.
func count(zones []string) map[string]int {
	counts := map[string]int{}
	for _, zone := range zones {
		counts[zone]++
	}
	return counts
}

// The cases are those of upstream's tests of AddHints, redistributeHints and
// getGivingAndReceivingZones, as far as endpoints can lead to them.
func TestAllocate_DividesAsUpstream(t *testing.T) {
	for name, c := range map[string]struct {
		cpu     map[string]int64
		zones   []string
		want    map[string]int
		problem string
	}{
		"no endpoint, no node":    {problem: "no endpoint is ready"},
		"an endpoint, no node":    {zones: []string{"a"}, problem: "no node is ready"},
		"two for three zones":     {cpu: map[string]int64{"a": 30, "b": 40, "c": 30}, zones: []string{"a", "b"}, problem: "2 ready endpoints are fewer than the 3 zones"},
		"two for two zones":       {cpu: map[string]int64{"a": 45, "b": 55}, zones: []string{"a", "b"}, want: map[string]int{"a": 1, "b": 1}},
		"ten for three zones":     {cpu: map[string]int64{"a": 35, "b": 35, "c": 30}, zones: []string{"a", "b", "c", "c", "a", "a", "a", "b", "c", "a"}, want: map[string]int{"a": 4, "b": 3, "c": 3}},
		"all in one of two":       {cpu: map[string]int64{"a": 50, "b": 50}, zones: repeated("a", 4), want: map[string]int{"a": 2, "b": 2}},
		"one zone gives to two":   {cpu: map[string]int64{"a": 51, "b": 51, "c": 58}, zones: repeated("a", 16), want: map[string]int{"a": 6, "b": 5, "c": 5}},
		"to the one in most need": {cpu: map[string]int64{"a": 50, "b": 56, "c": 54}, zones: repeated("a", 16), want: map[string]int{"a": 5, "b": 6, "c": 5}},
		"from the ones with most": {cpu: map[string]int64{"a": 50, "b": 56, "c": 54}, zones: append(repeated("b", 8), repeated("c", 8)...), want: map[string]int{"a": 5, "b": 6, "c": 5}},
		"even already":            {cpu: map[string]int64{"a": 50, "b": 50, "c": 50}, zones: append(append(repeated("a", 6), repeated("b", 6)...), repeated("c", 6)...), want: map[string]int{"a": 6, "b": 6, "c": 6}},
		"three for two zones":     {cpu: map[string]int64{"a": 50, "b": 50}, zones: []string{"a", "b", "b"}, problem: "3 ready endpoints cannot be shared out among 2 zones without loading one above 120 percent"},
		"no zone is any zone":     {cpu: map[string]int64{"a": 50, "b": 50}, zones: []string{"a", "a", "", ""}, want: map[string]int{"a": 2, "b": 2}},
		"a zone without a share":  {cpu: map[string]int64{"a": 50, "b": 50}, zones: []string{"x", "a", "a", "x"}, want: map[string]int{"a": 2, "b": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			got, verdict := hints.Allocate(sharesOf(c.cpu), endpointsIn(c.zones...))
			if want := (hints.Verdict{Hinted: c.problem == "", Problem: c.problem}); verdict != want {
				t.Fatalf("verdict is %+v, want %+v", verdict, want)
			}
			if c.problem == "" {
				if diff := gocmp.Diff(c.want, count(got)); diff != "" {
					t.Errorf("endpoints by zone (-want +got):\n%s", diff)
				}
			} else if got != nil {
				t.Errorf("hints are %v in spite of the problem", got)
			}
		})
	}
}

// With equal zones the bound of 1.2 is impossible for some small numbers.
func TestAllocate_NumbersThatCannotBeDivided(t *testing.T) {
	for zones, want := range map[int][]int{
		2: {1, 3, 5},
		3: {1, 2, 4, 5, 8, 11},
		4: {1, 2, 3, 5, 6, 7, 10, 11, 15},
	} {
		cpu := map[string]int64{}
		for i := range zones {
			cpu[string(rune('a'+i))] = 4000
		}
		var got []int
		for n := 1; n <= 100; n++ {
			if _, verdict := hints.Allocate(sharesOf(cpu), endpointsIn(repeated("a", n)...)); !verdict.Hinted {
				got = append(got, n)
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%d zones (-want +got):\n%s", zones, diff)
		}
	}
}

func TestAllocate_HintsChangeBeyondThirtyPercentOnly(t *testing.T) {
	halves := sharesOf(map[string]int64{"a": 1, "b": 1})
	hinted := func(a, b int) []hints.Endpoint {
		endpoints := endpointsIn(append(repeated("a", a), repeated("b", b)...)...)
		for i := range endpoints {
			endpoints[i].Hint = endpoints[i].Zone
		}
		return endpoints
	}
	for name, c := range map[string]struct {
		endpoints []hints.Endpoint
		want      map[string]int
		problem   string
	}{
		"within 20 percent: they stay":               {endpoints: hinted(11, 9), want: map[string]int{"a": 11, "b": 9}},
		"at 25 percent: they stay":                   {endpoints: hinted(12, 8), want: map[string]int{"a": 12, "b": 8}},
		"beyond 30 percent: back to 20":              {endpoints: hinted(13, 7), want: map[string]int{"a": 11, "b": 9}},
		"a zone without any: back to 20":             {endpoints: hinted(20, 0), want: map[string]int{"a": 11, "b": 9}},
		"above 20 at best: they stay while below 30": {endpoints: hinted(3, 2), want: map[string]int{"a": 3, "b": 2}},
		"above 30 at best: they go":                  {endpoints: hinted(2, 1), problem: "3 ready endpoints cannot be shared out among 2 zones without loading one above 130 percent"},
	} {
		t.Run(name, func(t *testing.T) {
			got, verdict := hints.Allocate(halves, c.endpoints)
			if verdict.Problem != c.problem {
				t.Fatalf("problem is %q, want %q", verdict.Problem, c.problem)
			}
			if c.problem == "" {
				if diff := gocmp.Diff(c.want, count(got)); diff != "" {
					t.Errorf("endpoints by zone (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestAllocate_EndpointsWithoutAHintMoveFirst(t *testing.T) {
	shares := sharesOf(map[string]int64{"a": 1, "b": 1})
	endpoints := endpointsIn(repeated("a", 6)...)
	for i := range 4 {
		endpoints[i].Hint = "a"
	}
	got, _ := hints.Allocate(shares, endpoints)
	if diff := gocmp.Diff([]string{"b", "b"}, got[4:]); diff != "" {
		t.Errorf("endpoints without a hint (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(map[string]int{"a": 3, "b": 1}, count(got[:4])); diff != "" {
		t.Errorf("endpoints with one (-want +got):\n%s", diff)
	}
}

func TestAllocate_RemoteEndpointReturnsToItsOwnZone(t *testing.T) {
	shares := sharesOf(map[string]int64{"a": 1, "b": 1})
	endpoints := endpointsIn("a", "b", "a", "a", "a", "a")
	for i := range endpoints {
		endpoints[i].Hint = "a"
	}
	got, _ := hints.Allocate(shares, endpoints)
	if got[1] != "b" {
		t.Errorf("hints are %v, want the endpoint in b to be meant for b", got)
	}
}

// BenchmarkAllocate allocates the endpoints of one family, all of which have their hints already.
func BenchmarkAllocate(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", count), func(b *testing.B) {
			shares := sharesOf(map[string]int64{"a": 3, "b": 4, "c": 5})
			endpoints := endpointsIn(repeated("a", count)...)
			zones, _ := hints.Allocate(shares, endpoints)
			for i := range endpoints {
				endpoints[i].Hint = zones[i]
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, verdict := hints.Allocate(shares, endpoints); !verdict.Hinted {
					b.Fatal(verdict.Problem)
				}
			}
		})
	}
}
