package leasesvc

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/admission"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func TestIntroductions_BeyondTheRateComeAgainAndKeepTheirSessions(t *testing.T) {
	s := newSessions(t, func(c *Config) { c.MaxIntroductions = 2 })
	first := s.open(t)
	say(t, first, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(0, 2)})
	before, _, err := s.keeper.Load().Get(t.Context(), s.server.catalog.mustKey("node-0"), s.server.catalog.shardOfKey(s.server.catalog.mustKey("node-0")))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond)
	again := s.open(t)
	response := say(t, again, &leasev1.StreamHeartbeatsRequest{Sequence: 9, Holders: crowd(0, 3)})
	for i, w := range response.Welcomes {
		if why := w.GetRefusal(); why.GetReason() != "PACED" || why.RetryAfter.AsDuration() <= 0 || why.RetryAfter.AsDuration() > 5*time.Second {
			t.Errorf("holder %d: %v, want PACED and when to come again", i, w)
		}
	}
	after, found, err := s.keeper.Load().Get(t.Context(), before.Holder.Key, before.Shard)
	if err != nil || !found || after.Sequence != 9 || !after.LastBeatTime.After(before.LastBeatTime) {
		t.Errorf("the beat of a holder that was paced did not count: %+v after %+v, error %v", after, before, err)
	}
	if _, found, _ := s.keeper.Load().Get(t.Context(), s.server.catalog.mustKey("node-2"), s.server.catalog.shardOfKey(s.server.catalog.mustKey("node-2"))); found {
		t.Error("a holder that was paced and not known has a session")
	}
}

// mustKey is the key of a node.
func (c catalog) mustKey(name string) session.Key {
	return session.Key{Class: c.byName[NodeClass], Name: name}
}

// Ten thousand agents with one node each lose their connections together, and all come back in the same second.
func TestIntroductions_TenThousandReconnectAndNobodyIsLost(t *testing.T) {
	const agents = 10_000
	s := newSessions(t, nil)
	k := s.keeper.Load()
	for first := 0; first < agents; first += 1000 {
		s.server.gate = admission.NewGate(agents) // those were here before the rush
		say(t, s.open(t), &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(first, 1000)})
	}
	s.server.gate = admission.NewGate(s.cfg.MaxIntroductions)
	var crew sync.WaitGroup
	var paced atomic.Int64
	begin := time.Now()
	for i := range agents {
		crew.Go(func() {
			c := s.open(t)
			for sequence := uint64(1); ; sequence++ {
				w := say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: sequence, Holders: crowd(i, 1)}).Welcomes[0]
				if w.Handle != 0 {
					return
				}
				paced.Add(1)
				time.Sleep(w.GetRefusal().RetryAfter.AsDuration())
			}
		})
	}
	crew.Wait()
	took := time.Since(begin)
	if got := k.Counts(); got != (session.Counts{Alive: agents}) {
		t.Errorf("counts %+v, want all %d alive", got, agents)
	}
	if took > 15*time.Second {
		t.Errorf("all were welcome after %v, want it to take seconds", took)
	}
	t.Logf("all were welcome after %v, %d times somebody was paced", took, paced.Load())
}

func TestSender_IsSlowedDownThenSentAway(t *testing.T) {
	s := newSessions(t, func(c *Config) { c.MaxMessages = 50 })
	c := s.open(t)
	c.sender = sender{name: "CN=somebody", meter: s.server.meters.Open("CN=somebody"), expires: s.server.now().Add(time.Hour)}
	say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(0, 1)})
	var told []leasev1.StreamHeartbeatsResponse_Directive
	for sequence := uint64(2); ; sequence++ {
		err := c.respond(&leasev1.StreamHeartbeatsRequest{Sequence: sequence, Handles: []uint32{1}})
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted || rpcerror.ReasonOf(err) != "TOO_MANY_MESSAGES" || pauseIn(err) <= 0 {
				t.Errorf("error %v, want TOO_MANY_MESSAGES and when to come again", err)
			}
			break
		}
		if told = append(told, c.answer.response.Directive); len(told) > 5000 {
			t.Fatal("5,000 messages at once at a rate of 50 were taken")
		}
	}
	if last := told[len(told)-1]; len(told) < 400 || last != leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN {
		t.Errorf("sent away after %d messages and %v, want it to be slowed down for long before", len(told), last)
	}
	neighbour := s.open(t)
	neighbour.sender = sender{name: "CN=neighbour", meter: s.server.meters.Open("CN=neighbour"), expires: s.server.now().Add(time.Hour)}
	if got := say(t, neighbour, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(1, 1)}).Directive; got != 0 {
		t.Errorf("a neighbour is told %v", got)
	}
}

// pauseIn is how long an error asks to stay away.
func pauseIn(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return retry.RetryDelay.AsDuration()
		}
	}
	return 0
}

func TestSender_WhoseCertificateHasExpiredIsAskedForAnother(t *testing.T) {
	s := newSessions(t, nil)
	c := s.open(t)
	c.sender = sender{name: "CN=somebody", meter: s.server.meters.Open("CN=somebody"), expires: s.server.now()}
	response := say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(0, 1)})
	if response.Directive != leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH || response.Welcomes[0].Handle == 0 {
		t.Errorf("answer %v, want a welcome and REAUTH", response)
	}
}

// Certificates for devices say that they never expire by the last second of the year 9999.
func TestSender_WhoseCertificateNeverExpiresIsNotAskedForAnother(t *testing.T) {
	s := newSessions(t, nil)
	certificate := &x509.Certificate{Subject: pkix.Name{CommonName: "somebody"}, NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}
	ctx := peer.NewContext(t.Context(), &peer.Peer{
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}},
	})
	c := s.open(t)
	c.sender = s.server.senderOf(ctx)
	if got := say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(0, 1)}).Directive; got != 0 {
		t.Errorf("directive %v", got)
	}
}

// Whoever waits at the door is not heard, so he must not wait for long by the measure of the shortest life.
func TestStreams_NobodyWaitsAtTheDoorUntilHisSessionDies(t *testing.T) {
	s := newSessions(t, func(c *Config) {
		c.MaxIntroductions = 1
		c.FurtherClasses = []Class{{
			Name: "hasty", Namespace: "hasty", HeartbeatInterval: 200 * time.Millisecond, SuspectAfter: 1, Grace: time.Second,
			RenewInterval: time.Second, LeaseDuration: 2 * time.Second,
		}}
	})
	for range 100 {
		err := s.server.StreamHeartbeats(closing{line{ctx: t.Context()}})
		if pause := pauseIn(err); pause > time.Second/2 {
			t.Fatalf("asked to stay away for %v where a session may live for a second: %v", pause, err)
		}
	}
}

// closing is the stream of a client that says nothing and ends it.
type closing struct{ line }

func (closing) RecvMsg(any) error { return io.EOF }
