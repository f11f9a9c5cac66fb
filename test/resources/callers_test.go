package resources

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/review"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// newCallersPerSecond is below the rate at which a server sends reviews, and leaves processors
	// to the other callers.
	newCallersPerSecond = 400
	// callersAtOnce is how many calls of new callers are in progress.
	callersAtOnce = 16
	// Of each certificateShare callers one has a certificate and a connection of its own, and of
	// each strangerShare callers one is refused. The others have tokens, and may read.
	certificateShare, strangerShare = 20, 10
	// regulars are callers that call every regularPeriod.
	regulars      = 16
	regularPeriod = 100 * time.Millisecond
	// reviewsPerAnswer is how many reviews one answer needs: of the token, and of the right.
	reviewsPerAnswer = 2
	// shortestRenewal is below the age at which an answer is reviewed again.
	shortestRenewal = 6 * time.Second
	// maxCallerMemory bounds what one kept caller takes, in all caches together, and
	// maxFloodMemory bounds the buffers beside them.
	maxCallerMemory = 4 << 10
	maxFloodMemory  = 64 << 20
	// maxLatencyRatio bounds the 99th percentile of the latency of regular callers beside new ones,
	// as a multiple of that without them. That counts as leastLatency at least.
	maxLatencyRatio = 5
	leastLatency    = 5 * time.Millisecond
)

// callers calls one server under many identities.
type callers struct {
	*issuer
	server *replica
}

// connect connects from a loopback address of its own, as clients on different machines do.
func (c *callers) connect(config *tls.Config, network, number int) (*grpc.ClientConn, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(network), byte(number>>8), byte(number))}}
	return grpc.NewClient("passthrough:///"+c.server.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
}

// read makes one call. An empty user is that of the certificate of the connection.
func read(ctx context.Context, conn *grpc.ClientConn, user string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if user != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tokenStart+user)
	}
	_, err := leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{PageSize: 1})
	return err
}

// regular lets regular callers call until ctx ends, and returns their latencies.
func (c *callers) regular(ctx context.Context, conns []*grpc.ClientConn) (latencies []time.Duration) {
	var mu sync.Mutex // guards latencies
	var calling sync.WaitGroup
	for number, conn := range conns {
		calling.Go(func() {
			ticker := time.NewTicker(regularPeriod)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				begin := time.Now()
				if err := read(context.Background(), conn, fmt.Sprintf("regular-%d", number)); err != nil {
					c.Errorf("a regular caller: %v", err)
					return
				}
				mu.Lock()
				latencies = append(latencies, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	calling.Wait()
	return latencies
}

// flood makes one call of each of many callers. It returns the errors of calls that were not
// answered as they should be, by text.
func (c *callers) flood(number int) (map[string]int, error) {
	var mu sync.Mutex // guards unexpected
	unexpected := map[string]int{}
	pace := rate.NewLimiter(newCallersPerSecond, callersAtOnce)
	var group errgroup.Group
	for worker := range callersAtOnce {
		group.Go(func() error {
			shared, err := c.connect(c.anonymous(), 2, worker)
			if err != nil {
				return err
			}
			defer shared.Close()
			for n := worker; n < number; n += callersAtOnce {
				if err := pace.Wait(context.Background()); err != nil {
					return err
				}
				user, want := fmt.Sprintf("caller-%06d", n), codes.OK
				switch {
				case n/callersAtOnce%certificateShare == 0:
					err = c.readOnce(user, n)
				case n/callersAtOnce%strangerShare == 1:
					user, want = stranger+"-"+user, codes.PermissionDenied
					err = read(context.Background(), shared, user)
				default:
					err = read(context.Background(), shared, user)
				}
				if status.Code(err) != want {
					mu.Lock()
					unexpected[fmt.Sprintf("%v, want %v", err, want)]++
					mu.Unlock()
				}
			}
			return nil
		})
	}
	return unexpected, group.Wait()
}

// readOnce calls with a new certificate over a new connection.
func (c *callers) readOnce(user string, number int) error {
	config, err := c.client(certs.ClientLeaf(user))
	if err != nil {
		return err
	}
	conn, err := c.connect(config, 3, number%1000)
	if err != nil {
		return err
	}
	defer conn.Close()
	return read(context.Background(), conn, "")
}

// largest reads metrics until ctx ends, and returns the largest value of each series.
func (s *replica) largest(ctx context.Context, series ...string) []int {
	found := make([]int, len(series))
	for last := false; !last; {
		last = ctx.Err() != nil
		text, err := s.get(context.Background(), "/metrics")
		if err != nil {
			s.Errorf("metrics of %s: %v", s.Name, err)
			return found
		}
		for n, of := range series {
			found[n] = max(found[n], int(valueOf(text, of)))
		}
		testkit.Pause(ctx, 200*time.Millisecond)
	}
	return found
}

// Callers of 100,000 identities fill the caches of tokens, rights and certificates up to their
// bounds, take a bounded memory, and displace no answer about callers that call all the time.
func TestIdentities_Callers(t *testing.T) {
	w := newWorld(t, false)
	number, quiet := 2000, 2*time.Second
	if *long {
		number, quiet = *identities, 20*time.Second
	}
	c := &callers{issuer: w.newIssuer(leases)}
	s := w.newSecureServer(leases, 0, c.administrator(), c.args()...)
	c.server = s
	s.start()
	s.awaitReady()
	var conns []*grpc.ClientConn
	for n := range regulars {
		conn, err := c.connect(c.anonymous(), 1, n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
		w.await(startTimeout, func(ctx context.Context) error { return read(ctx, conn, fmt.Sprintf("regular-%d", n)) })
	}
	tb := newTable(t, fmt.Sprintf("%d callers, %d new ones a second, beside %d regular ones", number, newCallersPerSecond, regulars))

	calm, end := context.WithTimeout(context.Background(), quiet)
	defer end()
	alone := c.regular(calm, conns)
	before := s.usage()
	if err := s.Process().ResetPeak(); err != nil {
		t.Fatal(err)
	}
	reviewsBefore, begin := w.reviews.ofUsers("regular-"), time.Now()
	flooding, stop := context.WithCancel(context.Background())
	defer stop()
	var beside []time.Duration
	var kept []int
	var measuring sync.WaitGroup
	measuring.Go(func() { beside = c.regular(flooding, conns) })
	measuring.Go(func() {
		kept = s.largest(flooding, `trivet_access_review_answers{kind="token",result="allowed"}`,
			`trivet_access_review_answers{kind="access",result="allowed"}`, `trivet_access_review_answers{kind="access",result="denied"}`,
			`trivet_access_certificates`, `trivet_quota_identities{kind="user"}`)
	})
	unexpected, err := c.flood(number)
	took := time.Since(begin)
	peak := s.kernel().Peak
	stop()
	measuring.Wait()
	if err != nil {
		t.Fatal(err)
	}
	after := s.usage()

	tb.add("time for all calls", "%s", duration(took))
	tb.add("calls that were not answered as they should be", "%v", unexpected)
	if len(unexpected) > 0 {
		t.Errorf("%d kinds of calls were not answered as they should be: %v", len(unexpected), unexpected)
	}
	c.memory(tb, number, before, after, peak)
	c.caches(tb, number, kept)
	mayReview := regulars * reviewsPerAnswer * (1 + int(took/shortestRenewal))
	atMost(tb, "reviews of regular callers meanwhile", w.reviews.ofUsers("regular-")-reviewsBefore, mayReview, count)
	quietP99, floodP99 := percentile(alone, 0.99), percentile(beside, 0.99)
	tb.add("latency of regular callers alone, p50 and p99", "%s, %s", duration(percentile(alone, 0.5)), duration(quietP99))
	tb.add("latency of regular callers meanwhile, p50 and p99", "%s, %s", duration(percentile(beside, 0.5)), duration(floodP99))
	atMost(tb, "the second p99 as a multiple of the first one, which counts as "+leastLatency.String()+" at least", float64(floodP99)/float64(max(quietP99, leastLatency)), boundedRatio(maxLatencyRatio),
		func(ratio float64) string { return fmt.Sprintf("%.1f", ratio) })
}

// memory adds rows for the memory of a server before, during and after a flood.
func (c *callers) memory(tb *table, number int, before, after usage, peak int64) {
	c.Helper()
	bound := int64(maxFloodMemory + min(number, review.MaxAnswers)*maxCallerMemory)
	if !*long {
		bound *= 4 // the short form runs with the race detector
	}
	tb.add("resident memory before, largest and after", "%s, %s, %s", mebibytes(before.Resident), mebibytes(peak), mebibytes(after.Resident))
	atMost(tb, "largest resident memory beyond that before", peak-before.Resident, bound, mebibytes)
	atMost(tb, "memory kept after a garbage collection", after.heap+after.other-before.heap-before.other, int64(min(number, review.MaxAnswers)*maxCallerMemory), mebibytes)
}

// caches adds rows for the largest numbers of entries that were seen in the caches.
func (c *callers) caches(tb *table, number int, kept []int) {
	c.Helper()
	for n, cache := range []struct {
		what  string
		limit int
		// least is a part of the number that the cache must have had, or the metric counts nothing.
		least int
	}{
		{"users of tokens kept", review.MaxAnswers, number / 2},
		{"rights kept", review.MaxAnswers, number / 2},
		// A refusal is kept for a short time, so its bound is out of reach at this rate.
		{"refusals kept", review.MaxRefusals, 1},
		{"certificates kept", authn.MaxCertificates, number / certificateShare / 2},
		// An identity is forgotten within moments of its only call.
		{"identities with limits of their own", min(quota.MaxUsers, number/2), regulars},
	} {
		atMost(tb, cache.what, kept[n], cache.limit, count)
		if least := min(cache.limit, cache.least); kept[n] < least {
			tb.Errorf("%s: %d, want %d at least: the calls did not fill the cache", cache.what, kept[n], least)
		}
	}
}

// boundedRatio returns a bound of the long form. The short form says nothing about time.
func boundedRatio(bound float64) float64 {
	if *long {
		return bound
	}
	return 1e6
}
